"""What an application reads off an output, and whether it reads the same off another: the likeliest, or how much.

SQNR is pooled over all that an output says, so one letter of a thousand that is read as another costs next to nothing,
and a mask whose every edge moved keeps 20 dB. An application reads neither: of probabilities it takes the largest, and
of what lies between 0 and 1 what is above some level of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.contracts.measures import Agreement, Subject
from pipeline.graph.accuracy.edges import margins

CLEAR = 0.05
"""A probability that is so much above the runner-up does not hang on rounding."""
_ALIVE = 0.1
"""What is below this in both says no, whatever level an application asks for."""
_SUM = 0.02
"""How far probabilities may add up to something else than 1: float16 over a thousand classes."""

_Array = NDArray[Any]


@dataclass(frozen=True)
class _Read:
    """One sample: how many things there are to read, how much there is to agree on, and how much is agreed on."""

    name: str
    count: int
    all: float
    same: float


class Decisions:
    """What is read off the samples of one subject that says how it is read."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._levels: list[_Read] = []
        self._chosen: list[tuple[str, _Array, _Array]] = []

    def add(self, truth: _Array, tested: _Array, sample: str) -> None:
        """Add one sample: the values as they should be, and as they are, of the same shape."""
        if self._subject.reads == "level":
            self._levels.append(_overlap(sample, truth, tested))
        else:
            self._chosen.append((sample, *_choices(self._subject, truth, tested)))

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
        return Agreement(_shown(same), count, _shown(shares[worst]), samples[worst].name)


def choice_axis(arrays: Sequence[_Array]) -> int | None:
    """The axis along which all of these are probabilities: at least 0, two or more, adding up to 1. None if none is."""
    rank = min(array.ndim for array in arrays)
    if any(not array.size or not np.isfinite(array).all() or array.min() < -_SUM for array in arrays):
        return None
    for axis in range(rank - 1, -1, -1):
        if all(array.shape[axis] > 1 and np.abs(array.sum(axis, np.float64) - 1).max() <= _SUM for array in arrays):
            return axis
    return None


def _choices(subject: Subject, truth: _Array, tested: _Array) -> tuple[_Array, _Array]:
    """What both choose where the original is clear about it; what is not finite chooses nothing, -1."""
    assert subject.axis is not None
    assert subject.tie is not None
    clear = margins(truth, subject.axis).squeeze(subject.axis) >= subject.tie
    actual = np.where(np.isfinite(tested).all(subject.axis), np.argmax(tested, subject.axis), -1)
    return np.argmax(truth, subject.axis)[clear], actual[clear]


def _compared(chosen: Sequence[tuple[str, _Array, _Array]]) -> list[_Read]:
    """How many choices are the same; those that both leave at what is chosen nearly always don't count.

    Most steps of a line of text are blanks, and most places of a picture background.
    """
    everything = np.concatenate([expected.ravel() for _, expected, _ in chosen]) if chosen else np.zeros(0, np.int64)
    kinds, counts = np.unique(everything, return_counts=True)
    usual = kinds[counts.argmax()] if kinds.size > 1 and counts.max() > everything.size / 2 else None
    found = []
    for name, expected, actual in chosen:
        counted = (expected != usual) | (actual != usual) if usual is not None else np.ones(expected.shape, np.bool_)
        count = int(counted.sum())
        found.append(_Read(name, count, count, float((counted & (expected == actual)).sum())))
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
