"""Which rows of values are a sample's own and not of padding, told from the lengths of samples.

To look for them takes a run of the model. But where the own rows of samples of three lengths were the first so many
along one axis, as many as the sample is long along an axis of an input, those of a fourth are too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Shapes = tuple[tuple[int, ...], ...]
"""The shapes of the inputs of a sample, before they are padded."""
_ENOUGH = 3
"""Lengths that were looked at before others are told."""
_Rule = tuple[int, int]
"""Along which axis of the rows' dims there are as many own rows as which of the dims of the inputs says; axis -1: all
rows are."""


class OwnRows:
    """What was seen of some samples, by the names of readers of values."""

    def __init__(self) -> None:
        self._seen: set[Shapes] = set()
        self._dims: dict[str, tuple[int, ...]] = {}
        self._rules: dict[str, set[_Rule]] = {}

    def learn(self, shapes: Shapes, found: Mapping[str, tuple[tuple[int, ...], NDArray[np.bool_]]]) -> None:
        """Take in the own rows of a sample: for each reader the dims that rows are spread over, and which are own."""
        self._seen.add(shapes)
        for name, (dims, own) in found.items():
            self._dims[name] = dims
            rules = {
                rule
                for rule in ((-1, 0), *((axis, place) for axis in range(len(dims)) for place in range(_count(shapes))))
                if np.array_equal(_rows(dims, rule, shapes), own)
            }
            self._rules[name] = rules & self._rules.get(name, rules)

    def told(self, shapes: Shapes) -> dict[str, NDArray[np.bool_]] | None:
        """The own rows of a sample, by readers; None where they have to be looked for."""
        if len(self._seen) < _ENOUGH:
            return None
        found = {}
        for name, rules in self._rules.items():
            options = [_rows(self._dims[name], rule, shapes) for rule in sorted(rules)]
            if not options or any(not np.array_equal(options[0], other) for other in options[1:]):
                return None
            found[name] = options[0]
        return found


def _count(shapes: Shapes) -> int:
    return sum(map(len, shapes))


def _rows(dims: tuple[int, ...], rule: _Rule, shapes: Shapes) -> NDArray[np.bool_]:
    """Which rows a rule says are own."""
    axis, place = rule
    if axis < 0:
        return np.ones(math.prod(dims), np.bool_)
    lengths = [length for shape in shapes for length in shape]
    first = np.arange(dims[axis]) < lengths[place]
    spread = first.reshape([-1 if each == axis else 1 for each in range(len(dims))])
    return np.broadcast_to(spread, dims).reshape(-1)
