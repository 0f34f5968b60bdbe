"""A short run of :mod:`tests.corruptions`; `python -m tests.corruptions --count 1000` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.corruptions import Corruptor, small_project


@pytest.mark.slow
def test_random_damage_is_found_and_heals(tmp_path: Path) -> None:
    figures = Corruptor(small_project(tmp_path / "project"), seed=7).run(count=40, batch=12)
    assert sum(figures.done.values()) >= 40
    assert figures.missed == []
    assert figures.wrong_artifacts == []
    assert figures.not_healed == []
