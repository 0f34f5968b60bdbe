"""A few of the random graphs, of which `python -m tests.random_graphs` runs as many as are wanted."""

from __future__ import annotations

import pytest

from tests.random_graphs import judge_all, random_case

pytestmark = pytest.mark.slow


def test_nothing_passes_that_all_samples_refuse() -> None:
    outcomes = list(judge_all(9, 1, most=12))
    assert len(outcomes) == 9
    assert not [outcome for outcome in outcomes if outcome.is_wrong]
    passed = [outcome for outcome in outcomes if not outcome.build]
    assert len(passed) >= 3, "graphs of which none passes show nothing"


def test_a_number_stands_for_the_same_graph() -> None:
    one, other = random_case(5, 1), random_case(5, 1)
    assert one.model == other.model
    assert one.model != random_case(5, 2).model
    assert all((a["x"] == b["x"]).all() for a, b in zip(one.held_out, other.held_out, strict=True))
