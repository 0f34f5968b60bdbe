"""The search on a ruler in place of a model: accuracies are computed, so that each turn it takes can be foreseen."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipeline.graph.accuracy.search.search import Emulation, Search, SearchLimits, Trial
from pipeline.graph.accuracy.search.sensitivity import Choice

CANDIDATES = [Choice(low=frozenset(range(number))) for number in range(20, -1, -1)]
"""From 20 groups of 8 bits to none."""


def position(choice: Choice) -> int:
    return 20 - len(choice.low)


class Ruler:
    """Candidate n has n dB, on the CPU and on the emulator, less what is lost there."""

    def __init__(
        self, *, quantizing: float = 0.0, compiling: float = 0.0, fails: Callable[[int], str] = lambda _: ""
    ) -> None:
        self._quantizing = quantizing
        self._compiling = compiling
        self._fails = fails
        self.emulated_positions: list[int] = []

    def rounded(self, choice: Choice) -> float:
        return float(position(choice))

    def quantized(self, choice: Choice) -> float:
        return position(choice) - self._quantizing

    def emulated(self, choice: Choice) -> Emulation:
        self.emulated_positions.append(position(choice))
        return Emulation(self.quantized(choice) - self._compiling, 30.0, self._fails(position(choice)))


def search(
    ruler: Ruler, *, total_db: float = 12.0, trials: int = 40, emulations: int = 6, margin_db: float = 0.5
) -> Search:
    """With a margin that is less than the step between the candidates, so that it takes one step."""
    limits = SearchLimits(total_db, 20.0, trials, emulations, margin_db)
    return Search(ruler, limits, lambda choice: choice, position)


def reached(trial: Trial | None) -> int:
    assert trial is not None
    return position(trial.choice)


def test_the_cheapest_that_reaches_target_and_margin_is_found_by_bisection() -> None:
    ruler = Ruler()
    found = search(ruler)

    assert reached(found.first(CANDIDATES)) == 13, "12 dB and a margin"
    assert ruler.emulated_positions == [13]
    assert len(found.trials) <= 6, "the last and log2 of 21"


def test_what_quantizing_loses_is_made_up_for_without_the_emulator() -> None:
    ruler = Ruler(quantizing=2.0)
    assert reached(search(ruler).first(CANDIDATES)) == 15
    assert ruler.emulated_positions == [15]


def test_what_compiling_loses_is_made_up_for() -> None:
    ruler = Ruler(compiling=3.0)
    assert reached(search(ruler).first(CANDIDATES)) == 16
    assert ruler.emulated_positions == [13, 16]


def test_the_emulator_must_agree_with_the_cpu_too() -> None:
    class Apart(Ruler):
        def emulated(self, choice: Choice) -> Emulation:
            return Emulation(100.0, position(choice) + 5.0)

    assert reached(search(Apart()).first(CANDIDATES)) == 16, "compile_db is 20"


def test_a_failed_compile_is_left_behind_in_large_steps() -> None:
    ruler = Ruler(fails=lambda number: "" if number >= 18 else "it is split into 2 partitions")
    assert reached(search(ruler).first(CANDIDATES)) == 19
    assert ruler.emulated_positions == [13, 17, 19]


def test_what_the_emulator_gets_all_wrong_is_left_behind_in_large_steps_too() -> None:
    class Wrong(Ruler):
        def emulated(self, choice: Choice) -> Emulation:
            found = super().emulated(choice)
            return found if position(choice) >= 18 else Emulation(0.0, 0.0)

    ruler = Wrong()
    assert reached(search(ruler).first(CANDIDATES)) == 19
    assert ruler.emulated_positions == [13, 17, 19]


def test_the_last_emulation_goes_to_the_last_candidate() -> None:
    ruler = Ruler(fails=lambda number: "" if number == 20 else "no")
    assert reached(search(ruler, emulations=2).first(CANDIDATES)) == 20
    assert ruler.emulated_positions == [13, 20]


def test_spare_emulations_are_left_for_the_next_list() -> None:
    ruler = Ruler(compiling=100.0)
    found = search(ruler, emulations=3)
    assert found.first(CANDIDATES, spare=1) is None
    assert ruler.emulated_positions == [13, 20]
    assert found.emulations_left == 1


def test_the_last_candidate_needs_no_margin() -> None:
    assert reached(search(Ruler(), total_db=20.0).first(CANDIDATES)) == 20


@pytest.mark.parametrize("ruler", [Ruler(), Ruler(compiling=9.0)])
def test_none_is_found_where_none_passes(ruler: Ruler) -> None:
    found = search(ruler, total_db=20.5)
    assert found.first(CANDIDATES) is None
    assert ruler.emulated_positions == [], "what the CPU refuses need not be compiled"


def test_without_emulations_the_cpu_decides() -> None:
    ruler = Ruler(compiling=9.0)
    assert reached(search(ruler, emulations=0).first(CANDIDATES)) == 13
    assert ruler.emulated_positions == []


def test_few_trials_give_a_dearer_choice_that_passes() -> None:
    found = search(Ruler(), trials=3)
    assert reached(found.first(CANDIDATES)) == 15
    assert len(found.trials) == 3


def test_a_cheaper_one_that_was_met_on_the_way_is_preferred() -> None:
    ruler = Ruler()
    limits = SearchLimits(12.0, 20.0, 40, 6, 0.5)
    found = Search(ruler, limits, lambda choice: choice, lambda choice: 0.0 if position(choice) == 15 else 1.0)
    assert reached(found.first(CANDIDATES)) == 15, "bisection met it before it came to 13"
    assert ruler.emulated_positions == [15]


def test_a_wider_margin_takes_a_dearer_choice() -> None:
    assert reached(search(Ruler(), margin_db=2.0).first(CANDIDATES)) == 14
