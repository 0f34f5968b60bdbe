"""The decision that an application reads off an output, and whether another output gives the same one.

SQNR is pooled over all that an output says, so one letter of a thousand that is read as another costs next to nothing,
and a mask whose every edge moved keeps 20 dB. An application reads neither: of probabilities it takes the largest, and
of what lies between 0 and 1 what is above some level of its own.

How many choices would be made otherwise on other inputs: what margins and errors of the seen ones tell together.

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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.contracts.measures import Agreement, Subject
from pipeline.graph.accuracy.figures.edges import margins

FEWEST = 8
"""Choices below which nothing is estimated: gaps of a tenth of all are no distribution."""
_MOST = 300
"""Choices that are looked at: of more, as many quantiles. Pairs are a square of them."""
_LEAST_SHIFT = 1e-9


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


CLEAR = 0.05
"""A probability that is so much above the runner-up does not hang on rounding."""
_ALIVE = 0.1
"""Below this in both outputs the answer is no, at any level that an application may ask for."""
_SUM = 0.02
"""How far probabilities may add up to something else than 1: float16 over a thousand classes."""
_LEAST_ODDS = 2.0**-10
"""Probabilities below this are as good as none: formats have no steps left to tell them apart."""

_FAR = 1e6
"""A margin that nothing comes near."""

_Array = NDArray[Any]


@dataclass(frozen=True)
class _Chosen:
    """One sample's choices that the original is clear about, each float or int [n].

    What each of the two chose, by how much the original did (`margins`), and what was added to that (`errors`). Not
    `told` is an error of a probability that is as good as 1: there is no runner-up whose odds could have moved.
    """

    name: str
    expected: _Array
    actual: _Array
    margins: _Array
    errors: _Array
    told: _Array


@dataclass(frozen=True)
class _Read:
    """One sample: how many things there are to read, how much there is to agree on, and how much is agreed on."""

    name: str
    count: int
    all: float
    same: float


class Decisions:
    """The decisions of one subject over its samples."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._levels: list[_Read] = []
        self._chosen: list[_Chosen] = []

    def add(self, truth: _Array, tested: _Array, sample: str) -> None:
        """Add one sample: the values as they should be, and as they are, of the same shape."""
        if self._subject.reads == "level":
            self._levels.append(_overlap(sample, truth, tested))
            self._chosen.append(_yes_or_no(sample, truth, tested))
        else:
            self._chosen.append(_choices(sample, self._subject, truth, tested))

    def agreement(self) -> Agreement | None:
        """The share that is read alike, None where there was nothing to read.

        A sample's disagreement is held against what there is in it or in the mean one, whichever is more.
        """
        samples = self._levels or _compared(self._chosen)
        everything = sum(sample.all for sample in samples)
        if not everything:
            return None
        mean = everything / len(samples)
        shares = [1 - (sample.all - sample.same) / max(sample.all, mean) for sample in samples]
        worst = int(np.argmin(shares))
        same = sum(sample.same for sample in samples) / everything
        count = sum(sample.count for sample in samples)
        flips = self._flips()
        shown = None if flips is None else float(format(flips, ".3g"))
        return Agreement(_shown(same), count, _shown(shares[worst]), samples[worst].name, shown)

    def _flips(self) -> float | None:
        """The share of choices that other inputs are expected to have made otherwise."""
        kept = [*zip(self._chosen, _counted(self._chosen), strict=True)]
        seen = np.concatenate([each.margins[counted] for each, counted in kept])
        errors = np.concatenate([each.errors[counted] for each, counted in kept])
        told = np.concatenate([each.told[counted] for each, counted in kept])
        shift = None if _is_of_scores(self._subject) else largest_shift(seen, errors)
        errors = errors[told] if told.sum() >= FEWEST else errors
        return expected_share(seen, errors, _least(self._subject), shift)


def choice_axis(arrays: Sequence[_Array]) -> int | None:
    """The axis along which all of these are probabilities: at least 0, two or more, adding up to 1. None if none is."""
    rank = min(array.ndim for array in arrays)
    if any(not array.size or not np.isfinite(array).all() or array.min() < -_SUM for array in arrays):
        return None
    for axis in range(rank - 1, -1, -1):
        if all(array.shape[axis] > 1 and np.abs(array.sum(axis, np.float64) - 1).max() <= _SUM for array in arrays):
            return axis
    return None


def chosen_along(axis: int, truth: _Array, tested: _Array) -> _Array:
    """The choices of `tested` along an axis, int: the place of the largest, or -1 where it is NaN.

    What is infinite in the truth already is a mask, and may be one here.
    """
    lost = np.isnan(truth) | np.isnan(tested) | (np.isfinite(truth) & ~np.isfinite(tested))
    return np.where(lost.any(axis), -1, np.argmax(tested, axis))


def _least(subject: Subject) -> float:
    """The least margin of a choice that is clear: of probabilities, the least that the logarithm of odds can be."""
    tie = CLEAR if subject.tie is None else subject.tie
    return tie if _is_of_scores(subject) else 2 * math.atanh(min(tie, 1 - _LEAST_ODDS))


def _is_of_scores(subject: Subject) -> bool:
    return subject.reads not in ("likeliest", "level")


def _choices(name: str, subject: Subject, truth: _Array, tested: _Array) -> _Chosen:
    """The choices of both where the original is clear; NaN chooses nothing, -1.

    Margins of probabilities are those of their logarithms: near 1 no error shows in a probability itself.
    """
    assert subject.axis is not None
    assert subject.tie is not None
    clear = margins(truth, subject.axis).squeeze(subject.axis) >= subject.tie
    # float [n, classes]
    expected, actual = (np.moveaxis(each, subject.axis, -1)[clear] for each in (truth, tested))
    chosen = chosen_along(-1, expected, actual)
    if not _is_of_scores(subject):
        expected, actual = _log_odds(expected), _log_odds(actual)
        return _chosen(name, expected, actual, chosen, math.log(_LEAST_ODDS))
    return _chosen(name, expected, actual, chosen, -math.inf)


def _yes_or_no(name: str, truth: _Array, tested: _Array) -> _Chosen:
    """Levels as choices between yes and no at a half, where the original is clear about it."""
    clear = np.abs(2 * truth.astype(np.float64) - 1) >= CLEAR
    expected, actual = (each[clear].astype(np.float64) for each in (truth, tested))
    before, after = (_log_odds(each) - _log_odds(1 - each) for each in (expected, actual))
    says = before > 0
    errors = np.where(says, after - before, before - after).astype(np.float32)
    told = np.minimum(expected, 1 - expected) > _LEAST_ODDS
    return _Chosen(name, says, np.asarray(after > 0), np.abs(before).astype(np.float32), errors, told)


def _chosen(name: str, expected: _Array, actual: _Array, chosen: _Array, floor: float) -> _Chosen:
    """Of scores, float [n, classes], none below `floor`: by how much the original's choice is above all others."""
    first = np.argmax(expected, -1)
    (own, others), (own_now, others_now) = (_apart(each.astype(np.float64), first) for each in (expected, actual))
    # Where all others are masked there is nothing to flip to.
    alone = np.isneginf(others)
    with np.errstate(invalid="ignore"):
        before, after = own - others, own_now - others_now
        errors = np.where(alone, 0.0, after - before)
    return _Chosen(name, first, chosen, np.where(alone, _FAR, before), errors, others > floor)


def _apart(scores: _Array, first: _Array) -> tuple[_Array, _Array]:
    """The score at `first`, int [n], and the largest of the others; float [n] each."""
    others = scores.copy()
    np.put_along_axis(others, first[:, None], -np.inf, -1)
    return np.take_along_axis(scores, first[:, None], -1)[:, 0], others.max(-1, initial=-np.inf)


def _log_odds(probabilities: _Array) -> _Array:
    return np.asarray(np.log(np.maximum(probabilities.astype(np.float64), _LEAST_ODDS)))


def _counted(chosen: Sequence[_Chosen]) -> list[_Array]:
    """Which choices count, for each sample: not those that both leave at what is chosen nearly always.

    Most steps of a line of text are blanks, and most places of a picture background.
    """
    everything = np.concatenate([each.expected for each in chosen])
    kinds, counts = np.unique(everything, return_counts=True)
    usual = kinds[counts.argmax()] if kinds.size > 1 and counts.max() > everything.size / 2 else None
    if usual is None:
        return [np.ones(each.expected.shape, np.bool_) for each in chosen]
    return [(each.expected != usual) | (each.actual != usual) for each in chosen]


def _compared(chosen: Sequence[_Chosen]) -> list[_Read]:
    """How many of the choices that count are the same."""
    found = []
    for each, counted in zip(chosen, _counted(chosen) if chosen else [], strict=True):
        count = int(counted.sum())
        found.append(_Read(each.name, count, count, float((counted & (each.expected == each.actual)).sum())))
    return found


def _overlap(name: str, truth: _Array, tested: _Array) -> _Read:
    """How many values say yes to some level in either, what they cover together, and what both cover.

    What both cover over what they cover together is the mean, over all levels, of intersection over union.
    """
    expected = np.clip(truth.astype(np.float64), 0, 1)
    actual = np.clip(np.nan_to_num(tested.astype(np.float64), nan=0.0), 0, 1)
    most = np.maximum(expected, actual)
    alive = most >= _ALIVE
    return _Read(name, int(alive.sum()), float(most[alive].sum()), float(np.minimum(expected, actual)[alive].sum()))


def _shown(share: float) -> float:
    return float(format(share, ".5f"))
