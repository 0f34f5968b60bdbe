"""Choices of precision from cheap to dear, made of what was measured.

A budget of noise is spent on what saves most for its noise: groups of 8 bits, weights of 4, and tables of 8 or 4, the
others being those of w8a16. What doesn't fit into the rest of the budget is passed over. Ever smaller budgets give the
candidates, and no budget w8a16. From there on, groups stay in float, up to all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pipeline.graph.accuracy.search.pricing import Pricing
from pipeline.graph.accuracy.search.sensitivity import Choice, Point, Sensitivity, Trials

STEP_DB = 0.25
"""By how much the noise of one candidate is meant to differ from that of the next."""

_FREE = 1e-9
"""The least that something is taken to save, relative to w8a16: what saves nothing goes by its noise."""
_LEAST_DB = -10.0
"""Where nothing is left of a signal; sums of noises predict little there."""


@dataclass(frozen=True)
class _Packing:
    """A table goes from 8 bits to 4."""

    name: str


_Move = int | str | _Packing
"""A group, by number; a weight, or a table that goes from 16 bits to 8, by name."""


class Candidates:
    """What may be lowered in a model, in order."""

    def __init__(self, trials: Trials, sensitivity: Sensitivity, pricing: Pricing) -> None:
        self._pricing = pricing
        self._weights: dict[str | _Packing, float] = dict(sensitivity.weights.items())
        for name, noise in sensitivity.packed.items():
            self._weights[_Packing(name)] = noise - sensitivity.weights[name]
        self._touching: list[list[tuple[Point, float]]] = [[] for _ in trials.groups]
        for point, noise in sensitivity.points.items():
            for group in sorted(point.of | point.unless):
                self._touching[group].append((point, noise))
        constants, packed = frozenset([*trials.weights, *trials.lookups]), frozenset(trials.packable)
        self._everything = Choice(frozenset(range(len(trials.groups))), constants, packed=packed)
        self._noise = sensitivity.noise(self._everything)
        self._order = list(self._raises())[::-1]

    def up_to(self, reference_db: float) -> list[Choice]:
        """From everything lowered to w8a16, which has `reference_db`."""
        reference_db = max(reference_db, _LEAST_DB)
        base = 10 ** (-reference_db / 10)
        least = max(_LEAST_DB, -10 * math.log10(self._noise + base))
        found = [self._everything]
        for step in range(math.ceil((reference_db - least) / STEP_DB)):
            choice = self._within(10 ** (-(least + step * STEP_DB) / 10) - base)
            if choice != found[-1]:
                found.append(choice)
        return found if found[-1] == Choice() else [*found, Choice()]

    def _within(self, budget: float) -> Choice:
        """As much as fits into a budget of noise over signal."""
        choice = Choice()
        for move in self._order:
            if isinstance(move, _Packing) and move.name not in choice.narrow:
                continue
            added = self._gain(move, choice.low | {move}) if isinstance(move, int) else self._weights[move]
            if added > budget:
                continue
            budget -= added
            if isinstance(move, int):
                choice = replace(choice, low=choice.low | {move})
            elif isinstance(move, str):
                choice = replace(choice, narrow=choice.narrow | {move})
            else:
                choice = replace(choice, packed=choice.packed | {move.name})
        return choice

    def _raises(self) -> Iterator[_Move]:
        """From everything lowered, what removes the most noise for its price, one after another."""
        low = self._everything.low
        narrow = {move: noise / max(self._price(move), _FREE) for move, noise in self._weights.items()}
        while low or narrow:
            worth = {group: self._gain(group, low) / max(self._pricing.of_group(group), _FREE) for group in sorted(low)}
            group = max(worth, key=worth.__getitem__, default=None)
            # A table that has 4 bits is raised to 8 before it is raised to 16.
            open_moves = (move for move in narrow if not isinstance(move, str) or _Packing(move) not in narrow)
            weight = max(open_moves, key=lambda move: (narrow[move], str(move)), default=None)
            if weight is not None and (group is None or narrow[weight] > worth[group]):
                del narrow[weight]
                yield weight
            elif group is not None:
                low -= {group}
                yield group

    def _price(self, move: str | _Packing) -> float:
        return self._pricing.of_weight(move) if isinstance(move, str) else self._pricing.of_packed(move.name)

    def _gain(self, group: int, low: frozenset[int]) -> float:
        """The noise that raising a group removes, of those that are low."""
        rest = low - {group}
        return sum(noise * (point.low(low) - point.low(rest)) for point, noise in self._touching[group])


def in_float(gains: Sequence[float], pricing: Pricing) -> Iterator[Choice]:
    """From w8a16 with one group in float to all groups in float; `gains` is the noise that each loses by it."""
    order = sorted(range(len(gains)), key=lambda group: -gains[group] / max(pricing.of_float(group), _FREE))
    for count in range(1, len(order) + 1):
        yield Choice(exact=frozenset(order[:count]))


def settled(choice: Choice, pricing: Pricing) -> Choice:
    """The choice without groups of 8 bits that save nothing to speak of, or less than their conversions cost."""
    price = pricing.price(choice)
    for group in sorted(choice.low):
        step = replace(choice, low=choice.low - {group})
        without = pricing.price(step)
        if not pricing.is_dearer(without, price):
            choice, price = step, without
    return choice
