"""Integers of a weight that are rounded already, improved one after another.

With ``X`` the inputs of a weight ``W`` [inputs, channels] and ``Q`` what it was rounded to, ``|X (W - Q)|^2`` is a
quadratic function of any single scale, and of any single integer, while all others stay. Each scale in turn is set to
the minimum, each integer to the nearest one. GPTQ makes up for errors by later inputs alone, and its scales are chosen
before anything is rounded; here, all inputs count. (Behdin et al., "QuantEase: Optimization-based Quantization for
Language Models", 2023, do the same with integers.)

Errors are integers and so are the correlations, of so many bits that sums of their products are exact, whatever the
order: the result is the same on every processor.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_PANEL = 32
"""Inputs of which the sums are made by one product of matrices."""
_CHANNELS = 512
"""Channels that are looked at together: they don't depend on each other."""
_PAIR_BITS = 15
_MOST_BITS = 28
"""Of an error: the diagonal of damped correlations has up to 22."""
_HEADROOM_BITS = 3
"""An error is at most 3 times what the largest weight of its channel, or the largest integer, stands for at first."""
_LEAST_LENGTH = 2.0**-10
"""Of an input beside the largest: a smaller one is taken for so large, lest its errors fall below the grid."""
_MOST_CHANGE = 2.0
"""A scale may become so many times larger or smaller."""


class Settling:
    """What is known of the inputs of a weight, ready to settle weights with.

    `counts` [inputs, inputs] are whole numbers: correlations in steps of about 2^-15, of which the diagonal is damped.
    `length` [inputs] is the root of each input's power, the largest being 1; `room` the bits that a number may have
    whose products with `counts` are added up.
    """

    def __init__(self, counts: NDArray[np.float64], power: NDArray[np.float64]) -> None:
        """`power` [inputs] is the mean square of each input."""
        length = np.sqrt(power / power.max(initial=0)) if power.any() else np.ones(len(power))
        self.length = np.maximum(length, _LEAST_LENGTH)
        self.counts = counts
        self.room = min(_MOST_BITS, 52 - _PAIR_BITS - math.ceil(math.log2(max(2, len(power)))))

    def settle(
        self,
        weight: NDArray[np.float32],
        whole: NDArray[np.float64],
        scale: NDArray[np.float64],
        smallest: NDArray[np.float64],
        half: int,
        *,
        passes: int,
        refit: bool,
    ) -> None:
        """Improve `whole` [inputs, channels] in place, and with `refit` `scale` [blocks, channels].

        Integers stay within -half - 1 and half, scales above `smallest`, and no scale changes its sign.
        """
        channels = weight.shape[1]
        for start in range(0, channels, _CHANNELS):
            part = slice(start, start + _CHANNELS)
            some = _Channels(
                self, weight[:, part].astype(np.float64), whole[:, part], scale[:, part], smallest[:, part], half
            )
            for _ in range(passes):
                some.pass_over(refit=refit)


class _Channels:
    """Some channels of a weight; what is given is changed."""

    def __init__(
        self,
        known: Settling,
        weight: NDArray[np.float64],
        whole: NDArray[np.float64],
        scale: NDArray[np.float64],
        smallest: NDArray[np.float64],
        half: int,
    ) -> None:
        self._known, self._weight, self._whole, self._scale = known, weight, whole, scale
        first = np.abs(scale)
        self._half = half
        self._least, self._most = np.maximum(first / _MOST_CHANGE, smallest), first * _MOST_CHANGE
        largest = np.maximum(np.abs(weight).max(axis=0, initial=2.0**-60), (half + 1) * first.max(axis=0))
        self._grid = np.ldexp(1.0, np.frexp(largest)[1] + _HEADROOM_BITS - known.room)
        self._size = len(weight) // len(scale)
        self._errors = np.empty(weight.shape)
        for block in range(len(scale)):
            self._count_errors(block)

    def pass_over(self, *, refit: bool) -> None:
        """Let each scale, and then the integers that it is for, find their place once."""
        for block in range(len(self._scale)):
            rows = self._rows(block)
            pulls = self._known.counts[rows] @ self._errors
            before = self._errors[rows].copy()
            if refit:
                self._fit(block, pulls)
                self._count_errors(block)
            for start in range(rows.start, rows.stop, _PANEL):
                panel = slice(start, min(start + _PANEL, rows.stop))
                own = pulls[start - rows.start : panel.stop - rows.start]
                self._move(panel, own + self._known.counts[panel, rows] @ (self._errors[rows] - before), block)

    def _rows(self, block: int) -> slice:
        return slice(block * self._size, (block + 1) * self._size)

    def _count_errors(self, block: int) -> None:
        rows = self._rows(block)
        off = self._weight[rows] - self._whole[rows] * self._scale[block]
        self._errors[rows] = np.rint(off * self._known.length[rows, None] / self._grid)

    def _fit(self, block: int, pulls: NDArray[np.float64]) -> None:
        """The scale with which the integers of a block lose least."""
        rows = self._rows(block)
        spread = self._whole[rows] * self._known.length[rows, None]
        exponents = np.frexp(np.abs(spread).max(axis=0, initial=1.0))[1] - self._known.room + 1
        steps = np.ldexp(spread, -exponents)
        np.rint(steps, out=steps)
        size = (steps * (self._known.counts[rows, rows] @ steps)).sum(axis=0)
        more = np.ldexp((steps * pulls).sum(axis=0) * self._grid / np.where(size > 0, size, 1.0), -exponents)
        old = self._scale[block]
        fitted = np.where(size > 0, old + more, old) * np.sign(old)
        bounded = np.clip(fitted, self._least[block], np.maximum(self._most[block], self._least[block]))
        self._scale[block] = (bounded * np.sign(old)).astype(np.float32)

    def _move(self, rows: slice, pulls: NDArray[np.float64], block: int) -> None:
        """Give each input's integers the place where they lose least; `pulls` [inputs, channels] are its sums."""
        scale, grid = self._scale[block], self._grid
        for number, row in enumerate(range(rows.start, rows.stop)):
            counts, length = self._known.counts[row, rows], self._known.length[row]
            best = pulls[number] * (grid / (counts[number] * length)) / scale
            best += self._whole[row]
            np.rint(best, out=best)
            np.clip(best, -self._half - 1, self._half, out=best)
            error = np.rint((self._weight[row] - best * scale) * length / grid)
            pulls[number + 1 :] += counts[number + 1 :, None] * (error - self._errors[row])
            self._whole[row], self._errors[row] = best, error
