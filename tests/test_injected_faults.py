"""A few of the injected faults, of which `python -m tests.injected_faults` tries as many as are wanted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.injected_faults import judge_all, table

pytestmark = pytest.mark.slow


def test_no_fault_is_missed_that_a_budget_for_each_context_saw(tmp_path: Path) -> None:
    verdicts = list(judge_all(6, 3, tmp_path))
    assert [each for each in verdicts if each.before and not each.now] == []
    assert sum(each.exhaustive for each in verdicts) >= 3, "faults of which none shows prove nothing"
    assert {each.counts for each in verdicts} == {(16, 3), (16, 2), (9, 1)}
    assert table(verdicts).splitlines()[-1].split()[:2] == ["all", "6"]
