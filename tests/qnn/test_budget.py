"""How many samples are emulated: as many as fit into the time, the cost of each being known before it is run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipeline.qnn import emulate
from pipeline.qnn.emulate import Budget


class Clock:
    """Time that passes only while a sample is run, and a session that takes so many seconds for each."""

    def __init__(self, *seconds: float, cores: float = 2.0) -> None:
        self.now = 0.0
        self.seconds = list(seconds)
        self.cores = cores

    def monotonic(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self.now * self.cores

    def run(self, names: object, feed: object) -> list[Any]:
        self.now += self.seconds.pop(0)
        return [np.zeros(1)]


def ran(monkeypatch: pytest.MonkeyPatch, budget: Budget | None, *seconds: float, cores: float = 2.0) -> int:
    clock = Clock(*seconds, cores=cores)
    monkeypatch.setattr(emulate, "time", clock)
    session: Any = clock
    return len(list(emulate._within(budget, session, [{}] * len(seconds))))


def test_time_is_left_for_what_is_run_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ran(monkeypatch, Budget(10, 0), *[2.0] * 9) == 5
    assert ran(monkeypatch, Budget(10, 0, reserved=1), *[2.0] * 9) == 4


def test_all_are_run_while_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ran(monkeypatch, Budget(30, 16), *[0.05] * 498) == 498
    assert ran(monkeypatch, None, *[9.0] * 40) == 40


def test_no_more_are_begun_than_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ran(monkeypatch, Budget(30, 2), *[4.0] * 20) == 7
    assert ran(monkeypatch, Budget(30, 2), 1.0, 20.0, *[1.0] * 20) == 2, "the dearest may come again"


def test_one_is_run_whatever_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ran(monkeypatch, Budget(30, 16), 266.0, 266.0) == 1


def test_time_of_others_does_not_count_up_to_four_times_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has half a core for the emulator takes four times as long, and has run as many."""
    idle = ran(monkeypatch, Budget(10, 0), *[1.0] * 40)
    assert ran(monkeypatch, Budget(10, 0), *[4.0] * 40, cores=0.5) == idle == 10
    assert ran(monkeypatch, Budget(10, 0), *[8.0] * 40, cores=0.25) == 5, "but no longer than that"


def test_what_fits_by_the_estimate_is_run_on_a_slow_machine_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ran(monkeypatch, Budget(30, 11), *[5.0] * 20) == 11
    assert ran(monkeypatch, Budget(30, 16), *[5.0] * 20) == 12, "but for no more than twice the time"
