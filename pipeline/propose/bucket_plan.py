"""The best buckets for a distribution of lengths, exactly, by dynamic programming.

A sample costs the work of the smallest bucket that holds it. Of one axis the buckets are any of the lengths that occur;
of two axes they grow together, each at least as large as the one before on both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MOST = 8
"""Buckets in the largest plan."""

GRID = 10_000
"""Pairs of lengths that are looked at for two axes; more are rounded up to a coarser grid."""

Work = Callable[[int], int]
PairWork = Callable[[int, int], int]


@dataclass(frozen=True)
class BucketPlan:
    """Points, one value an axis, the smallest first, and the work of all samples in them."""

    points: tuple[tuple[int, ...], ...]
    work: int


def plan_lengths(lengths: Sequence[int], work: Work, most: int = MOST) -> list[BucketPlan]:
    """The best plan of 1, 2, … `most` buckets, or of as many as there are different lengths.

    `work` of a length is a whole number that does not fall as lengths grow. Takes time in proportion to the number of
    different lengths: for each number of buckets, the best bucket before a length is the lowest of lines, which are
    kept as their lower hull (https://cp-algorithms.com/geometry/convex_hull_trick.html).
    """
    counted = sorted(Counter(lengths).items())
    sizes = [size for size, _ in counted]
    works = [work(size) for size in sizes]
    before = [0]  # samples up to a length
    for _, count in counted:
        before.append(before[-1] + count)
    best = [works[place] * before[place + 1] for place in range(len(sizes))]
    choices: list[list[int]] = []
    plans = [BucketPlan(((sizes[-1],),), best[-1])]
    while len(plans) < min(most, len(sizes)):
        best, chosen = _with_one_more(best, works, before)
        choices.append(chosen)
        places, place = [len(sizes) - 1], len(sizes) - 1
        for made in reversed(choices):
            place = made[place]
            places.append(place)
        plans.append(BucketPlan(tuple((sizes[each],) for each in reversed(places)), best[-1]))
    return plans


def _with_one_more(best: Sequence[int], works: Sequence[int], before: Sequence[int]) -> tuple[list[int], list[int]]:
    """The least work of all samples up to each length with one more bucket, that length the last of them.

    Also the place of the bucket before; -1 where there are too few lengths.
    """
    made, chosen = [_NEVER], [-1]
    slopes: list[int] = []
    values: list[int] = []
    places: list[int] = []
    first = 0
    for place in range(1, len(works)):
        slope, value = -before[place], best[place - 1]
        if value < _NEVER:
            while len(places) - first >= 2 and (value - values[-2]) * (slopes[-2] - slopes[-1]) <= (
                values[-1] - values[-2]
            ) * (slopes[-2] - slope):
                slopes.pop()
                values.pop()
                places.pop()
            slopes.append(slope)
            values.append(value)
            places.append(place - 1)
        if not places:
            made.append(_NEVER)
            chosen.append(-1)
            continue
        at = works[place]
        while (
            len(places) - first >= 2
            and values[first + 1] + slopes[first + 1] * at <= values[first] + slopes[first] * at
        ):
            first += 1
        made.append(values[first] + slopes[first] * at + at * before[place + 1])
        chosen.append(places[first])
    return made, chosen


_NEVER = 1 << 200
"""More work than any plan has."""


@dataclass(frozen=True)
class PairPlans:
    """Plans of two axes; `step` is what lengths were rounded up to on each, 1 where they were not."""

    plans: tuple[BucketPlan, ...]
    step: tuple[int, int]


def plan_pairs(pairs: Sequence[tuple[int, int]], work: PairWork, most: int = MOST) -> PairPlans:
    """The best plans of two axes that grow together.

    Exact on the grid of all lengths that occur on either axis; where that has more than :data:`GRID` points, on one
    that is coarse enough.
    """
    step = _step(pairs)
    rounded = [tuple(-(-size // by) * by for size, by in zip(pair, step, strict=True)) for pair in pairs]
    axes = [sorted({pair[axis] for pair in rounded}) for axis in (0, 1)]
    places: list[dict[int, int]] = [{size: place for place, size in enumerate(sizes)} for sizes in axes]
    held = np.zeros((len(axes[0]), len(axes[1])), np.int64)
    for one, two in rounded:
        held[places[0][one], places[1][two]] += 1
    held = held.cumsum(0).cumsum(1)  # samples that each point holds
    works = np.array([[float(work(one, two)) for two in axes[1]] for one in axes[0]], np.float64)
    best: NDArray[np.float64] = works * held.astype(np.float64)
    end = (len(axes[0]) - 1, len(axes[1]) - 1)
    plans = [_pair_plan([end], axes, held, work)]
    choices: list[NDArray[np.int64]] = []
    while len(plans) < most and len(plans) < len(set(rounded)):
        best, chosen = _pairs_with_one_more(best, works, held)
        if not np.isfinite(best[end]):
            break
        choices.append(chosen)
        path = [end]
        for made in reversed(choices):
            one, two = divmod(int(made[path[-1]]), len(axes[1]))
            path.append((one, two))
        plans.append(_pair_plan(path[::-1], axes, held, work))
    return PairPlans(tuple(plans), step)


def _pairs_with_one_more(
    best: NDArray[np.float64], works: NDArray[np.float64], held: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """As for one axis; the place of the bucket before is a row times the width, plus a column."""
    made = np.full(best.shape, np.inf)
    chosen = np.full(best.shape, -1, np.int64)
    for one in range(best.shape[0]):
        for two in range(best.shape[1]):
            found = best[: one + 1, : two + 1] - works[one, two] * held[: one + 1, : two + 1]
            found[one, two] = np.inf  # itself
            place = int(found.argmin())
            row, column = divmod(place, two + 1)
            if np.isfinite(found[row, column]):
                made[one, two] = found[row, column] + works[one, two] * held[one, two]
                chosen[one, two] = row * best.shape[1] + column
    return made, chosen


def _pair_plan(
    path: Sequence[tuple[int, int]], axes: Sequence[Sequence[int]], held: NDArray[np.int64], work: PairWork
) -> BucketPlan:
    points = tuple((axes[0][one], axes[1][two]) for one, two in path)
    total = before = 0
    for place, point in zip(path, points, strict=True):
        total += work(*point) * (int(held[place]) - before)
        before = int(held[place])
    return BucketPlan(points, total)


def _step(pairs: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """What lengths are rounded up to, so that the grid is not too large; the same share of each axis."""
    steps = [1, 1]
    while True:
        counts = [len({-(-pair[axis] // steps[axis]) for pair in pairs}) for axis in (0, 1)]
        if counts[0] * counts[1] <= GRID:
            return steps[0], steps[1]
        steps[0 if counts[0] >= counts[1] else 1] *= 2
