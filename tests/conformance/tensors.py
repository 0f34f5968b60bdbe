"""Inputs of operators that look at more than one element, and cases of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.conformance.cases import Case, single
from tests.conformance.edges import ORDINARY, SATURATED, Floats
from tests.conformance.formats import FP16

_DIMS = {rank: (2, 3, 4, 5, 6)[-rank:] for rank in range(1, 6)}

_SUMS: Mapping[str, Floats] = {
    "all equal": np.full(240, 1.5, np.float32),
    "tiny": ORDINARY[:240] * np.float32(1e-5),
    "small": ORDINARY[:240] * np.float32(1e-3),
    "hundreds": ORDINARY[:240] * np.float32(100),
    "thousands": ORDINARY[:240] * np.float32(2000),
    "offset": ORDINARY[:240] * np.float32(0.01) + 50,
    "sum beyond fp16": np.abs(ORDINARY[:240]) * np.float32(3000),
    "one row loud": np.where(np.arange(240) < 60, np.float32(100), np.float32(0.01)) * ORDINARY[:240],
    "zeros": np.zeros(240, np.float32),
    "-0": np.full(240, -0.0, np.float32),
    "saturation": ORDINARY[:240] * 2,
}
"""Values for whole rows. Those of `zeros` and `-0` are for float16 alone: an encoding needs a range."""


def attempt(operator: str, number_format: str, edge: str, variant: str, inputs: list[Any], **how: Any) -> Case | None:
    """A case; None where the operator's definition doesn't allow it."""
    try:
        model, feeds = single(operator, inputs, **how)
    except Exception:  # shape inference refuses it
        return None
    ranges = {"x0": SATURATED} if edge == "saturation" else {}
    return Case(operator, number_format, edge, variant, model, feeds, ranges)


def of_rank(rank: int, values: Floats = ORDINARY) -> Floats:
    """An array of so many dims, each of another size, with these values."""
    dims = _DIMS[rank]
    return np.asarray(np.resize(values, dims), np.float32)


def numbers(*values: int) -> NDArray[np.int64]:
    """Axes, a shape."""
    return np.array(values, np.int64)


def rows(number_format: str) -> Iterator[tuple[str, Floats]]:
    """Name -> values of which whole rows are made."""
    for edge, values in _SUMS.items():
        if (number_format == FP16 and edge != "saturation") or edge not in ("zeros", "-0", "all equal"):
            yield edge, values
