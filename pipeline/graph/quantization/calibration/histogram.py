"""What values a tensor took, counted in a fixed number of bins whatever their number and size.

Bins are equally wide, half of them below zero. When a value lies beyond the last one, neighbours are merged, two into
one, until it fits. As widths are powers of two, the counts are then exactly those of the wider bins: neither the order
of samples nor how they were grouped shows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIDE = 2048
"""Bins on either side of zero; a histogram takes 32 KiB."""
_SMALLEST = -60
"""Exponent of the narrowest range: values below 2**-60 are all in the two bins around zero."""


class Histogram:
    """Counts of the values of one tensor, zeros apart, since every encoding holds zero exactly."""

    def __init__(self) -> None:
        self.counts: NDArray[np.int64] = np.zeros(2 * SIDE, np.int64)
        self.valid = 0.0
        self.valid_zeros = 0.0
        self._exponent = _SMALLEST

    def add(self, array: NDArray[Any], valid: float = 1.0) -> None:
        """Count the finite elements of an array, of which the share `valid` is no padding."""
        values = np.asarray(array, np.float32).reshape(-1)
        values = values[values != 0]
        zeros = array.size - values.size
        self.valid += array.size * valid
        self.valid_zeros += zeros * valid
        if not values.size:
            return
        self._widen(math.frexp(float(np.abs(values).max()))[1])
        # The width is a power of two, so the division is exact, and bins don't depend on what came before.
        places = np.floor(np.ldexp(values.astype(np.float64), SIDE.bit_length() - 1 - self._exponent)).astype(np.int64)
        self.counts += np.bincount(places + SIDE, minlength=2 * SIDE)

    def join(self, other: Histogram) -> None:
        """Count what another one has counted."""
        self._widen(other._exponent)
        theirs = Histogram()
        theirs.counts, theirs._exponent = other.counts, other._exponent
        theirs._widen(self._exponent)
        self.counts += theirs.counts
        self.valid += other.valid
        self.valid_zeros += other.valid_zeros

    @property
    def edges(self) -> NDArray[np.float64]:
        """Where bins begin, and the last one ends: `counts` and one more."""
        return np.asarray(np.arange(-SIDE, SIDE + 1) * math.ldexp(1 / SIDE, self._exponent))

    def _widen(self, exponent: int) -> None:
        while self._exponent < exponent:
            merged = self.counts.reshape(-1, 2).sum(axis=1)
            self.counts = np.zeros_like(self.counts)
            self.counts[SIDE // 2 : SIDE // 2 + SIDE] = merged
            self._exponent += 1
