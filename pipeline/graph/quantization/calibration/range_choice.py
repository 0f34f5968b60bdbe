"""Ranges that are narrower than what was measured, because they lose less: percentile, MSE and entropy.

The padding of a bucket is counted like all else where it would be cut off, for the device computes it too and masks
rely on it, and not at all where many equal numbers would make a range narrow: see `valid` in
:class:`pipeline.graph.quantization.calibration.histogram.Histogram`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pipeline.graph.quantization.calibration.histogram import SIDE, Histogram
from pipeline.graph.quantization.calibration.ranges import Range

_STEPS = 8
"""Candidates per halving of a range."""
_HALVINGS = 8
"""A range is made at most this many times half as wide."""

Counts = NDArray[np.float64]


@dataclass(frozen=True)
class Method:
    """A way to choose ranges; `percentile` is the share of values, in percent, that a range keeps."""

    name: str
    """`minmax`, `percentile`, `entropy` or `mse`."""
    percentile: float = 99.99
    symmetric: bool = field(default=False, kw_only=True)
    """Whether zero is to be in the middle, of `mse`."""

    def choose(self, histogram: Histogram, measured: Range, bits: int) -> Range:
        """The range to encode values with in `bits` bits: within `measured`, zero in it, and all of it if in doubt."""
        measured = measured.with_zero()
        if measured.width == 0 or self.name == "minmax":
            return measured
        if self.name == "percentile":
            chosen = _percentile(histogram, self.percentile)
        elif self.name == "mse":
            chosen = _least_squares(histogram, measured, bits, symmetric=self.symmetric)
        else:
            chosen = _least_divergence(histogram, measured, bits)
        within = Range(max(chosen.low, measured.low), min(chosen.high, measured.high)).with_zero()
        return within if within.width > 0 else measured


MINMAX = Method("minmax")
"""Everything that was measured."""
OF_STATES = Method("mse", symmetric=True)
"""What a run hands to the next one: the range of the least squared error, of those with zero in the middle."""


def _percentile(histogram: Histogram, percentile: float) -> Range:
    """All but a share of the values that are not zero, half of it at either end."""
    may_lose = (histogram.valid - histogram.valid_zeros) * (1 - percentile / 100) / 2
    below = np.cumsum(histogram.counts)
    above = np.cumsum(histogram.counts[::-1])
    first = int(np.searchsorted(below, may_lose, side="right"))
    last = int(np.searchsorted(above, may_lose, side="right"))
    edges = histogram.edges
    return Range(float(edges[min(first, 2 * SIDE)]), float(edges[max(2 * SIDE - last, 0)]))


def _least_squares(histogram: Histogram, measured: Range, bits: int, *, symmetric: bool) -> Range:
    """The smallest sum of squared errors: of values cut off, and of rounding, which is step² / 12 on average."""
    below, above = -measured.low, measured.high
    if symmetric:
        below = above = max(below, above)
    lows, lost_below = _cut(histogram.counts[:SIDE][::-1], -histogram.edges[: SIDE + 1][::-1], below)
    highs, lost_above = _cut(histogram.counts[SIDE:], histogram.edges[SIDE:], above)
    rounded = histogram.valid - histogram.valid_zeros
    if symmetric:
        both = lost_below + lost_above + rounded * (2 * highs / ((1 << bits) - 1)) ** 2 / 12
        end = float(highs[int(np.argmin(both))])
        return Range(-end, end)
    steps = (highs[None, :] + lows[:, None]) / ((1 << bits) - 1)
    lost = lost_below[:, None] + lost_above[None, :] + rounded * steps**2 / 12
    row, column = np.unravel_index(int(np.argmin(lost)), lost.shape)
    return Range(-float(lows[row]), float(highs[column]))


def _cut(counts: NDArray[np.int64], edges: Counts, limit: float) -> tuple[Counts, Counts]:
    """Where one side may be cut off, widest first, and the squared error of what lies beyond."""
    if limit <= 0:
        return np.zeros(1), np.zeros(1)
    centres = np.minimum((edges[:-1] + edges[1:]) / 2, limit)
    ends = limit * _shares()
    beyond = np.maximum(centres[None, :] - ends[:, None], 0.0)
    return ends, np.asarray((beyond**2) @ counts.astype(np.float64))


def _least_divergence(histogram: Histogram, measured: Range, bits: int) -> Range:
    """The smallest relative entropy of the counts to what is left of them in so many steps, both ends cut alike."""
    if 1 << bits >= 2 * SIDE:
        return measured  # finer than the bins: there is nothing to lose but what is cut off
    shares = _shares()
    lost = [_divergence(histogram, share * measured.low, share * measured.high, 1 << bits) for share in shares]
    share = float(shares[int(np.argmin(lost))])
    return Range(share * measured.low, share * measured.high)


def _divergence(histogram: Histogram, low: float, high: float, steps: int) -> float:
    edges, counts = histogram.edges, histogram.counts.astype(np.float64)
    first, last = int(np.searchsorted(edges, low, "right")) - 1, int(np.searchsorted(edges, high, "left"))
    first, last = max(first, 0), min(max(last, first + 1), counts.size)
    kept = counts[first:last]
    real = kept.copy()
    real[0] += counts[:first].sum()
    real[-1] += counts[last:].sum()
    step = np.arange(kept.size) * steps // max(kept.size, steps)
    filled = (kept > 0).astype(np.float64)
    shared = np.bincount(step, kept, steps) / np.maximum(np.bincount(step, filled, steps), 1)
    model = shared[step] * filled
    present = real > 0
    if not present.any() or not model.any():
        return float("inf")
    real, model = real / real.sum(), np.maximum(model / model.sum(), 1e-12)
    return float((real[present] * np.log(real[present] / model[present])).sum())


def _shares() -> Counts:
    return np.asarray(2.0 ** (-np.arange(_STEPS * _HALVINGS) / _STEPS))
