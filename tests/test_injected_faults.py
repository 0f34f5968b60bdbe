"""A few of the injected faults, of which `python -m tests.injected_faults` tries as many as are wanted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.injected_faults import judge_all, keep, read, table

pytestmark = pytest.mark.slow


def test_no_fault_is_missed_that_a_budget_for_each_context_saw(tmp_path: Path) -> None:
    verdicts = list(judge_all(6, 3, tmp_path))
    assert [each for each in verdicts if each.before and not each.now] == []
    shown = sum(each.exhaustive and not each.refused for each in verdicts)
    assert shown >= 2, "faults of which none shows prove nothing"
    assert {each.counts for each in verdicts} == {(16, 12), (16, 10), (16, 5), (16, 4), (9, 3), (9, 2)}
    refused = sum(bool(each.refused) for each in verdicts)
    assert table(verdicts).splitlines()[-1].split()[:4] == ["all", "6", str(refused), str(shown)]


def test_a_fault_follows_from_seed_and_number_and_verdicts_are_kept(tmp_path: Path) -> None:
    (first,) = judge_all(1, 5, tmp_path / "first")
    kept = tmp_path / "kept.jsonl"
    keep(first, kept)
    assert read(kept) == [first]
    rest = [*judge_all(2, 5, tmp_path / "rest", known={0})]
    assert [each.fault.number for each in rest] == [1]
    assert [*judge_all(2, 5, tmp_path / "again", known={0})] == rest
