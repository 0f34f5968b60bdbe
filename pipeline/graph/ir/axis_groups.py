"""Axes of a value in groups of neighbours that are one dim together: what has more dims than QNN takes, in fewer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod

MOST_DIMS = 5
"""The dims of a tensor of QNN."""

Dims = tuple[int, ...]
Groups = Sequence[Sequence[int]]
"""Axes of a value, those that are one together."""


def merged(
    dims: Dims, alike: Callable[[int, int], bool] = lambda *_: True, kept: Sequence[int] = (), most: int = MOST_DIMS
) -> list[list[int]] | None:
    """The axes of a value in at most so many groups of neighbours that may be one; None where that can't be.

    Axes of 1 are left out; those that are `kept` are in groups of their own.
    """
    groups = [[axis] for axis, size in enumerate(dims) if size != 1 or axis in kept]

    def joint(left: Sequence[int], right: Sequence[int]) -> bool:
        return not {*left, *right} & {*kept} and alike(left[-1], right[0])

    while len(groups) > most:
        may = [at for at in range(len(groups) - 1) if joint(groups[at], groups[at + 1])]
        if not may:
            return None
        # What is smallest together: HTP has the last dims side by side, and likes few places in the others.
        at = min(may, key=lambda number: prod(dims[axis] for axis in (*groups[number], *groups[number + 1])))
        groups[at : at + 2] = [[*groups[at], *groups[at + 1]]]
    return groups or [[0]]


def joined(sizes: Sequence[int], groups: Groups) -> Dims:
    """What the sizes of the axes of each group come to."""
    return tuple(prod(sizes[axis] for axis in group) for group in groups)


def steps(order: Sequence[int]) -> Iterator[tuple[Groups, list[int]]]:
    """Transposes over at most 5 groups of axes each, one behind the other, that put axes into this order.

    Each is the groups of axes before it, and their order behind it.
    """
    now = sorted(order)
    while now != [*order]:
        groups = _runs(now, order)
        if len(groups) <= MOST_DIMS:
            behind = sorted(range(len(groups)), key=lambda number: order.index(groups[number][0]))
            yield groups, behind
            return
        at = next(number for number, axis in enumerate(order) if now[number] != axis)
        start = now.index(order[at])
        end = next((end for end in range(start, len(now)) if now[end] != order[at + end - start]), len(now))
        parts = [now[:at], now[at:start], now[start:end], now[end:]]
        swapped = [number for number in (0, 2, 1, 3) if parts[number]]
        present = [number for number in range(4) if parts[number]]
        yield [parts[number] for number in present], [present.index(number) for number in swapped]
        now = [*parts[0], *parts[2], *parts[1], *parts[3]]


def _runs(now: Sequence[int], order: Sequence[int]) -> list[list[int]]:
    """Axes in their present order, those that stay neighbours together."""
    runs: list[list[int]] = []
    for axis in now:
        if runs and order.index(axis) == order.index(runs[-1][-1]) + 1:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    return runs


def place(groups: Groups, axis: int) -> int:
    """The number of the group that an axis is in."""
    return next(number for number, group in enumerate(groups) if axis in group)
