from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from pipeline.build.crew import Crew
from pipeline.build.schedule import Schedule, WithdrawnError, remaining_s
from pipeline.config.load import load
from pipeline.plan.planner import plan
from pipeline.plan.workspace import Workspace


class Queue:
    """Steps that ask a schedule for their turn, each from a thread of its own, in the order they are added."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.started: list[str] = []
        self._threads: list[threading.Thread] = []
        self._end: dict[str, threading.Event] = {}

    def add(self, name: str, *, peak_bytes: int = 1, remaining: float = 1.0, patience: float = 0.0) -> None:
        waiting, self._end[name] = len(self.schedule._waiting), threading.Event()
        thread = threading.Thread(target=self._run, args=(name, peak_bytes, remaining, patience), daemon=True)
        self._threads.append(thread)
        thread.start()
        until(lambda: name in self.started or len(self.schedule._waiting) > waiting)

    def end(self, name: str) -> None:
        self._end[name].set()

    def end_all(self) -> None:
        for event in self._end.values():
            event.set()
        for thread in self._threads:
            thread.join(10)

    def _run(self, name: str, peak_bytes: int, remaining: float, patience: float) -> None:
        try:
            with self.schedule.admitted(peak_bytes=peak_bytes, remaining_s=remaining, patience_s=patience):
                self.started.append(name)
                assert self._end[name].wait(10)
        except WithdrawnError:
            self.started.append(f"no {name}")


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def stays(queue: Queue, started: list[str]) -> None:
    time.sleep(0.05)
    assert queue.started == started


def test_the_longest_way_to_go_starts_first_then_who_came_first() -> None:
    queue = Queue(Schedule(1, lambda: 100))
    queue.add("running")
    for name, remaining in (("short", 1.0), ("long", 9.0), ("middle", 5.0), ("second long", 9.0)):
        queue.add(name, remaining=remaining)
    queue.end_all()
    assert queue.started == ["running", "long", "second long", "middle", "short"]


def test_who_is_patient_lets_those_go_first_that_come_meanwhile_and_have_longer_to_go() -> None:
    queue = Queue(Schedule(1, lambda: 100))
    queue.add("short", remaining=1.0, patience=0.5)
    queue.add("long", remaining=9.0)
    until(lambda: queue.started == ["long"])
    queue.end("long")
    until(lambda: queue.started == ["long", "short"])
    queue.end_all()


def test_a_patient_step_is_not_kept_from_ending_with_the_build() -> None:
    schedule = Schedule(1, lambda: 100)
    queue = Queue(schedule)
    queue.add("patient", patience=9.0)
    schedule.close()
    until(lambda: queue.started == ["no patient"])


def test_no_more_run_at_once_than_there_are_places() -> None:
    queue = Queue(Schedule(2, lambda: 100))
    for name in "abc":
        queue.add(name)
    stays(queue, ["a", "b"])
    queue.end("a")
    until(lambda: "c" in queue.started)
    queue.end_all()


def test_places_can_be_added_while_steps_wait() -> None:
    schedule = Schedule(1, lambda: 100)
    queue = Queue(schedule)
    queue.add("a")
    queue.add("b")
    stays(queue, ["a"])
    schedule.limit(2)
    until(lambda: queue.started == ["a", "b"])
    queue.end_all()


def test_what_runs_fits_into_memory_together_and_nobody_overtakes_who_waits_for_it() -> None:
    queue = Queue(Schedule(8, lambda: 100))
    queue.add("half", peak_bytes=50)
    queue.add("large", peak_bytes=60, remaining=9.0)
    queue.add("small", peak_bytes=10, remaining=1.0)
    stays(queue, ["half"])
    queue.end("half")
    until(lambda: queue.started == ["half", "large", "small"])
    queue.end_all()


def test_a_step_larger_than_the_budget_runs_alone() -> None:
    queue = Queue(Schedule(8, lambda: 100))
    queue.add("small", peak_bytes=10)
    queue.add("huge", peak_bytes=1000, remaining=9.0)
    queue.add("other", peak_bytes=10)
    queue.end("small")
    until(lambda: "huge" in queue.started)
    stays(queue, ["small", "huge"])
    queue.end_all()
    assert queue.started == ["small", "huge", "other"]


def test_a_closed_schedule_starts_nothing_more_and_lets_run_what_runs() -> None:
    schedule = Schedule(1, lambda: 100)
    queue = Queue(schedule)
    queue.add("running")
    queue.add("waiting")
    schedule.close()
    until(lambda: "no waiting" in queue.started)
    with pytest.raises(WithdrawnError), schedule.admitted(peak_bytes=1, remaining_s=1.0):
        pass
    queue.end_all()


def test_the_way_to_go_is_the_longest_path_from_a_step() -> None:
    needs: dict[str, list[str]] = {
        "fetch": [],
        "shape": ["fetch"],
        "quantize": ["shape"],
        "verify": ["shape", "quantize"],
        "context": ["quantize"],
        "emulate": ["context", "verify"],
    }
    seconds = {"fetch": 1.0, "shape": 2.0, "quantize": 3.0, "verify": 4.0, "context": 8.0, "emulate": 16.0}
    assert remaining_s(seconds, needs) == {
        "emulate": 16.0,
        "context": 24.0,
        "verify": 20.0,
        "quantize": 27.0,
        "shape": 29.0,
        "fetch": 30.0,
    }


def test_who_can_use_more_has_it_where_the_others_leave_it() -> None:
    """Steps that start together would each see the same free memory."""
    schedule = Schedule(4, lambda: 100)

    def admitted() -> AbstractContextManager[int]:
        return schedule.admitted(peak_bytes=30, remaining_s=1.0, wished_bytes=60)

    with admitted() as first, admitted() as second:
        assert (first, second) == (60, 30)
    with schedule.admitted(peak_bytes=120, remaining_s=1.0, wished_bytes=240) as larger:
        assert larger == 120


def test_what_becomes_ready_with_longer_paths_waits_until_those_have_asked(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    path = tmp_path / "configs" / "a.yaml"
    path.write_text(
        "source: {path: ../models/a}\ncomponents: {model: {file: a.gguf}}\n"
        "language_model: {context: 512, prefill: 128}\ntargets: [snapdragon-x-elite]\n",
        "utf-8",
    )
    steps = {step.id: step for step in plan(load(path))}
    crew = Crew(Workspace.at(tmp_path), steps.values())
    check, context = "verify:a/model/128x384", "context:a/model/buckets/snapdragon-x-elite"

    for step in steps.values():
        if step.stage in ("shape", "rewrite", "samples", "calibrate", "quantize"):
            crew._patience_s(step.id)

    assert 0 < crew._patience_s(check) <= 1  # the contexts, which engines open next, may ask in a moment
    assert crew._patience_s(context) == 0  # nothing that waited for quantize has more behind it
    for step in steps.values():
        if step.stage in ("alone", "bundle", "converse", "emulate"):
            crew._patience_s(step.id)
    assert crew._patience_s(check) == 0
