"""Sums over the elements of one value of a graph: what it is, and what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.graph.accuracy.figures.accuracy import sqnr_db
from pipeline.graph.quantization.calibration.ranges import Range
from pipeline.graph.quantization.qdq.qdq_model import Encoding

_BULK = (0.01, 0.99)
_FEWEST = 32
"""Fewer elements than this lie at the ends of a range by chance."""


_AT_ONCE = 1 << 20
"""Elements that are looked at in one go: in float64, and several times over."""


class ValueSums:
    """The errors of one value over samples; memory does not grow with the elements, of which `_AT_ONCE` are looked at.

    With an encoding, elements are kept apart by where in its range they are: in the lowest tenth, the highest, or
    between. Where samples fill the ends and nothing between, one end is a mask's filler. It would carry nearly all
    the energy and hide any error of the others, so then all figures are those of the end that zero is in.
    """

    def __init__(self, encoding: Encoding | None) -> None:
        self._encoding = encoding
        covers = encoding.covers if encoding is not None else Range(-np.inf, np.inf)
        tenth = covers.width / 10 if encoding is not None else 0.0
        self._bounds = np.array([covers.low + tenth, covers.high - tenth])
        self._zero_end = 0 if -covers.low < covers.high else 2
        self._signal, self._total, self._own, self._weights = np.zeros((4, 3))
        self._count = np.zeros(3, np.int64)
        self._low, self._high = np.full(3, np.inf), np.full(3, -np.inf)
        self._bulk: Range | None = None

    def add(self, truth: NDArray[Any], tested: NDArray[Any], weighted: NDArray[Any] | None = None) -> None:
        """Add one sample: the value as it should be, as it is, and as quantized constants alone would make it."""
        for region in _regions(truth.shape):
            self._add(truth[region], tested[region], None if weighted is None else weighted[region])
        few = truth[_spread(truth.shape)].ravel()
        numbers = few[np.isfinite(few)].astype(np.float64)
        if numbers.size:
            low, high = np.quantile(numbers, _BULK, method="nearest")
            bulk = Range(float(low), float(high))
            self._bulk = bulk if self._bulk is None else self._bulk | bulk

    def _add(self, truth: NDArray[Any], tested: NDArray[Any], weighted: NDArray[Any] | None) -> None:
        expected = truth.astype(np.float64).ravel()
        finite = np.isfinite(expected)
        numbers = expected[finite]
        if numbers.size == 0:
            return
        part = np.searchsorted(self._bounds, numbers)
        self._signal += _squares(part, numbers)
        self._total += self._energy(part, expected, finite, tested)
        if self._encoding is not None:
            self._own += self._energy(part, expected, finite, self._encoding.rounded(truth))
        if weighted is not None:
            self._weights += self._energy(part, expected, finite, weighted)
        self._count += np.bincount(part, minlength=3)
        for which in range(3):
            if (chosen := numbers[part == which]).size:
                self._low[which] = min(self._low[which], chosen.min())
                self._high[which] = max(self._high[which], chosen.max())

    @property
    def empty(self) -> bool:
        """Whether no sample had a finite element."""
        return not self._count.any()

    @property
    def clustered(self) -> bool:
        """Whether all elements lie at the ends of the encoding."""
        low, middle, high = self._count
        return self._encoding is not None and bool(middle == 0 and min(low, high) > 0 and low + high >= _FEWEST)

    @property
    def total_db(self) -> float | None:
        """SQNR of the value as it is."""
        return self._db(self._total)

    @property
    def own_db(self) -> float | None:
        """SQNR of the exact value rounded to its encoding; None without one."""
        return self._db(self._own) if self._encoding is not None else None

    @property
    def weights_db(self) -> float | None:
        """SQNR of the value with the node's constants quantized and nothing else."""
        return self._db(self._weights)

    @property
    def observed(self) -> Range:
        """The range of all elements."""
        return Range(float(self._low.min()), float(self._high.max()))

    @property
    def bulk(self) -> Range:
        """The range, with zero, of nearly all elements (98 % of each sample's; of a large value's, of every so manieth
        row), or of those that aren't filler.
        """
        assert self._bulk is not None
        if self.clustered:
            return Range(float(self._low[self._zero_end]), float(self._high[self._zero_end])).with_zero()
        return self._bulk.with_zero()

    def _db(self, noise: NDArray[np.float64]) -> float | None:
        if self.clustered:
            return sqnr_db(float(self._signal[self._zero_end]), float(noise[self._zero_end]))
        return sqnr_db(float(self._signal.sum()), float(noise.sum()))

    def _energy(
        self,
        part: NDArray[np.int64],
        expected: NDArray[np.float64],
        finite: NDArray[np.bool_],
        tested: NDArray[Any],
    ) -> NDArray[np.float64]:
        """The energy of the error in each part; infinite if what should be infinite or NaN isn't, or isn't the same."""
        actual = tested.astype(np.float64).ravel()
        if not np.array_equal(expected[~finite], actual[~finite], equal_nan=True):
            return np.full(3, np.inf)
        return _squares(part, actual[finite] - expected[finite])


def _squares(part: NDArray[np.int64], numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.bincount(part, numbers * numbers, minlength=3), np.float64)


def _regions(shape: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """Parts of an array, in order, of no more elements than are looked at at once."""
    if math.prod(shape) <= _AT_ONCE:
        yield ()
        return
    axis = next(axis for axis in range(len(shape)) if math.prod(shape[axis + 1 :]) <= _AT_ONCE)
    rows = max(1, _AT_ONCE // math.prod(shape[axis + 1 :]))
    for place in np.ndindex(*shape[:axis]):
        for start in range(0, shape[axis], rows):
            yield (*(slice(index, index + 1) for index in place), slice(start, start + rows))


def _spread(shape: tuple[int, ...]) -> tuple[slice, ...]:
    """Every so manieth row along the longest axis, so that they are about as many elements as are looked at at once."""
    if math.prod(shape) <= _AT_ONCE:
        return ()
    longest = shape.index(max(shape))
    step = -(-math.prod(shape) // _AT_ONCE)
    return (*(slice(None) for _ in shape[:longest]), slice(None, None, step))
