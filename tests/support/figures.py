"""How near two arrays are, and figures that must be there."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.contracts.measures import Figures


def array_db(truth: NDArray[Any], tested: NDArray[Any]) -> float:
    """The SQNR of one array against another, in dB."""
    return float(10 * np.log10((truth**2).sum() / ((tested - truth) ** 2).sum()))


def db(figures: Figures) -> float:
    """The SQNR of an output that was measured, in dB."""
    assert figures.sqnr_db is not None
    return figures.sqnr_db
