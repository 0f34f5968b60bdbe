"""When emulation that takes far longer than was estimated is cut short: by CPU time, which no busy machine adds to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipeline.qnn.running import emulate
from pipeline.qnn.running.emulate import TimeLimit


class Clock:
    """CPU time that passes only while a sample is run, and a session that takes so many seconds for each."""

    def __init__(self, *seconds: float) -> None:
        self.now = 0.0
        self.seconds = list(seconds)

    def process_time(self) -> float:
        return self.now

    def run(self, names: object, feed: object) -> list[Any]:
        self.now += self.seconds.pop(0)
        return [np.zeros(1)]


def ran(monkeypatch: pytest.MonkeyPatch, limit: TimeLimit | None, *seconds: float) -> int:
    clock = Clock(*seconds)
    monkeypatch.setattr(emulate, "time", clock)
    session: Any = clock
    return len(list(emulate._within(limit, session, [{}] * len(seconds))))


def test_all_are_run_without_a_limit_or_within_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ran(monkeypatch, TimeLimit(30), *[0.05] * 498) == 498
    assert ran(monkeypatch, None, *[9.0] * 40) == 40


def test_no_more_are_begun_than_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ran(monkeypatch, TimeLimit(30), *[4.0] * 20) == 7
    assert ran(monkeypatch, TimeLimit(30), 1.0, 20.0, *[1.0] * 20) == 2, "the dearest may come again"


def test_one_is_run_whatever_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ran(monkeypatch, TimeLimit(30), 266.0, 266.0) == 1
