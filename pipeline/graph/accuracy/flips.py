"""How many choices would be made otherwise on other inputs: what margins and errors of the seen ones tell together.

A choice flips where the error of the difference between the largest and its runner-up is more than the margin of the
original. Of a few choices none may have flipped and one in fifty be about to: one that was seen tells 0 or 1, its
margin and its error tell how near it was. Both are taken apart and put together again in all pairs: an error as large
as one that was seen may meet a margin as small as another.

Small samples have gaps where others will lie, so neither is taken as it is:

- of n margins each of the n + 1 gaps holds the same share of all that will come, whatever their distribution is; within
  a gap all are as likely. So what is below the smallest margin that was seen is not empty;
- logarithms of odds differ most where probabilities are near 0 or 1, be it by rounding alone. No margin meets more of
  them than what the largest error of a probability makes there;
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
_LEAST_SHIFT = 1e-9

_Array = NDArray[Any]


def largest_shift(margins: _Array, errors: _Array) -> float:
    """The largest error of the difference of two probabilities, as a share of their sum.

    `margins` and `errors` are of the logarithm of their odds; of both ends of an error, the one that is nearer to even
    odds says what it makes of probabilities.
    """
    after = margins + errors
    nearer = np.where(margins * after < 0, 0.0, np.minimum(np.abs(margins), np.abs(after)))
    return float(np.fmax.reduce(np.abs(errors) / _slope(nearer), initial=0.0))


def expected_share(margins: _Array, errors: _Array, least: float, shift: float | None = None) -> float | None:
    """The share of choices that will flip, of those that are clear by `least`; None for fewer than :data:`FEWEST`.

    `margins`, float [n], are those of the original, all at least `least`; `errors`, float [n], what was added to them.
    Of logarithms of odds, `shift` is their :func:`largest_shift`.
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
    zeros = 1 - sizes.size / min(errors.size, _MOST)
    low, high = ends[:-1, None], ends[1:, None]
    if shift is not None:
        # At the upper end of a gap, where it is most.
        sizes = np.minimum(sizes, max(shift, _LEAST_SHIFT) * _slope(high))
    # The mean of a normal tail over a gap, exactly: its integral at both ends.
    between = (_tail_integral(high / sizes) - _tail_integral(low / sizes)) * sizes
    widths = high - low
    inside = np.where(widths > 1e-12, between / np.maximum(widths, 1e-12), _tail(low / sizes))
    # The last gap, above the largest margin, is taken for one at it.
    shares = np.concatenate([inside, _tail(high[-1:] / (sizes if shift is None else sizes[-1:]))]).mean(axis=1)
    return float(shares.mean() * (1 - zeros))


def _slope(odds: _Array) -> _Array:
    """By how much the logarithm of odds changes with the difference of two probabilities, as a share of their sum."""
    return np.asarray(2 * np.cosh(odds / 2) ** 2)


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
