"""How far the outputs of one model are from those of another, over many samples."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.model import Json

EXACT_DB = 100.0
"""The most that is reported: below that, outputs differ by the order of float32 sums, which varies with the CPU."""


class Accuracy:
    """Sums over the elements of one output; memory does not grow with the samples."""

    def __init__(self) -> None:
        self._signal = self._noise = self._tested = self._product = self._largest = 0.0

    def add(self, truth: NDArray[Any], tested: NDArray[Any]) -> None:
        """Add one sample: the output as it should be, and as it is, of the same shape."""
        expected, actual = truth.astype(np.float64).ravel(), tested.astype(np.float64).ravel()
        error = actual - expected
        self._signal += float(expected @ expected)
        self._tested += float(actual @ actual)
        self._product += float(expected @ actual)
        self._noise += float(error @ error)
        self._largest = float(np.maximum(self._largest, np.abs(error).max(initial=0.0)))

    @property
    def sqnr_db(self) -> float | None:
        """Energy of the truth over energy of the error, in dB; at most EXACT_DB, None if either isn't finite."""
        if not math.isfinite(self._noise) or not math.isfinite(self._signal):
            return None
        if self._noise == 0:
            return EXACT_DB
        if self._signal == 0:
            return None
        return min(10 * math.log10(self._signal / self._noise), EXACT_DB)

    @property
    def cosine(self) -> float | None:
        """Cosine of the angle between all outputs as they should be and as they are, each as one vector."""
        lengths = math.sqrt(self._signal) * math.sqrt(self._tested)
        return self._product / lengths if lengths and math.isfinite(self._product) else None

    def facts(self) -> dict[str, Json]:
        """``sqnr_db``, ``cosine`` and ``max_abs_error``, rounded; null for what isn't a number."""
        return {
            "sqnr_db": _rounded(self.sqnr_db, ".2f"),
            "cosine": _rounded(self.cosine, ".6f"),
            "max_abs_error": _rounded(self._largest, ".3g"),
        }


def valid_region(output: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """The part of a padded model's output that the unpadded model has too: the first elements of every dim."""
    return output[tuple(slice(size) for size in shape)]


def _rounded(value: float | None, form: str) -> float | None:
    return float(format(value, form)) if value is not None and math.isfinite(value) else None
