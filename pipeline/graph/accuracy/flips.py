"""How many choices would be made otherwise on other inputs: what margins and errors of the seen ones tell together.

A choice flips where the error of the difference between the largest and its runner-up is more than the margin of the
original. Of a few choices none may have flipped and one in fifty be about to: one that was seen tells 0 or 1, its
margin and its error tell how near it was. Both are taken apart and put together again in all pairs: an error as large
as one that was seen may meet a margin as small as another.

Small samples have gaps where others will lie, so neither is taken as it is:

- of n margins each of the n + 1 gaps holds the same share of all that will come, whatever their distribution is; within
  a gap all are as likely. So what is below the smallest margin that was seen is not empty;
- an error may have either sign, and stands for a normal one of its size: their power is what was seen, and beyond the
  largest of them there are more.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

FEWEST = 8
"""Choices below which nothing is estimated: gaps of a tenth of all are no distribution."""
_MOST = 300
"""Choices that are looked at: of more, as many quantiles. Pairs are a square of them."""

_Array = NDArray[Any]


def expected_share(margins: _Array, errors: _Array, least: float) -> float | None:
    """The share of choices that will flip, of those that are clear by `least`; None for fewer than :data:`FEWEST`.

    `margins`, float [n], are those of the original, all at least `least`; `errors`, float [n], what was added to them.
    """
    if margins.size < FEWEST:
        return None
    if not np.isfinite(errors).all() or not np.isfinite(margins).all():
        return 1.0
    ends = np.concatenate([[least], _quantiles(np.maximum(margins, least))]).astype(np.float64)
    sizes = _quantiles(np.abs(errors)).astype(np.float64)
    sizes = sizes[sizes > 0]
    if not sizes.size:
        return 0.0
    # The mean of a normal tail over a gap, exactly: its integral at both ends.
    integral = _tail_integral(ends[:, None] / sizes) * sizes
    widths = np.diff(ends)
    level = _tail(ends[:-1, None] / sizes)
    inside = np.where(widths[:, None] > 1e-12, np.diff(integral, axis=0) / np.maximum(widths, 1e-12)[:, None], level)
    zeros = 1 - sizes.size / min(errors.size, _MOST)
    # The last gap, above the largest margin, is taken for one at it.
    shares = np.concatenate([inside, _tail(ends[-1:, None] / sizes)]).mean(axis=1)
    return float(shares.mean() * (1 - zeros))


def _quantiles(values: _Array) -> _Array:
    ordered = np.sort(values, axis=None)
    if ordered.size <= _MOST:
        return ordered
    return np.asarray(ordered[((np.arange(_MOST) + 0.5) * ordered.size / _MOST).astype(np.int64)])


def _tail(number: _Array) -> _Array:
    """How much of a normal distribution lies above a number."""
    return np.asarray(0.5 * _erfc(number / math.sqrt(2)))


def _tail_integral(number: _Array) -> _Array:
    """The integral of :func:`_tail` from 0 to a number."""
    density = np.exp(-number * number / 2) / math.sqrt(2 * math.pi)
    return np.asarray(number * _tail(number) - density + 1 / math.sqrt(2 * math.pi))


_erfc = np.vectorize(math.erfc, otypes=[np.float64])
