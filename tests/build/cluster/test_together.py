"""What many threads ask for at the same time is asked for in one go, and each gets its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from pipeline.build.cluster import dispatcher, on_worker
from pipeline.build.cluster.dispatcher import Dispatcher
from pipeline.build.cluster.job import StepJob
from pipeline.build.cluster.together import Together

_PATIENCE_S = 30.0


class Held:
    """Doubles numbers; the first call ends when `free` is set."""

    def __init__(self) -> None:
        self.begun, self.free = threading.Event(), threading.Event()
        self.calls: list[list[int]] = []

    def __call__(self, numbers: Sequence[int]) -> list[int]:
        self.calls.append([*numbers])
        if len(self.calls) == 1:
            self.begun.set()
            assert self.free.wait(_PATIENCE_S)
        if 13 in numbers:
            raise ValueError("unlucky")
        return [2 * number for number in numbers]


def asked(
    numbers: Sequence[int], then: Callable[[Together[int, int]], None] = lambda _: None
) -> tuple[Held, list[object]]:
    """The calls for the first of some numbers and then, from a thread each, for all others; and what each got."""
    held = Held()
    together = Together(held)

    def one(number: int) -> object:
        try:
            return together(number)
        except ValueError as error:
            return str(error)

    with ThreadPoolExecutor(len(numbers)) as threads:
        first = threads.submit(one, numbers[0])
        assert held.begun.wait(_PATIENCE_S)
        others = [threads.submit(one, number) for number in numbers[1:]]
        while len(together._waiting) < len(others):
            time.sleep(0.001)
        held.free.set()
        got = [first.result(_PATIENCE_S), *(each.result(_PATIENCE_S) for each in others)]
    then(together)
    return held, got


def test_who_comes_while_others_are_asking_is_asked_for_with_them() -> None:
    held, got = asked([1, 2, 3, 4])
    assert got == [2, 4, 6, 8]
    assert [sorted(call) for call in held.calls] == [[1], [2, 3, 4]]


def test_what_a_call_raises_is_for_those_it_was_made_for() -> None:
    def again(together: Together[int, int]) -> None:
        assert together(5) == 10

    _, got = asked([1, 2, 13], again)
    assert got == [2, "unlucky", "unlucky"]


class Scheduler:
    """In place of a Dask client: notes the messages that it would send, and how often it was asked who is there."""

    def __init__(self) -> None:
        self.sent: list[tuple[list[str], object, object]] = []
        self.looks = 0

    def map(
        self, function: object, calls: list[str], given: list[dict[str, dict[str, str]]], **demands: object
    ) -> object:
        assert function is eval
        assert {*calls} == {on_worker.CALL}
        names = [each["job"]["name"] for each in given]
        self.sent.append((names, demands["resources"], demands["workers"]))
        return [f"future of {name}" for name in names]

    def scheduler_info(self, n_workers: int) -> object:
        self.looks += 1
        return {"workers": {"tcp://a": {"name": "a", "resources": on_worker.resources(["x86_64"])}}}


def test_a_message_has_the_steps_of_equal_demands_and_futures_are_in_the_order_of_steps() -> None:
    one, two = Scheduler(), Scheduler()
    wanted = [
        dispatcher._Wanted(client, StepJob("0" * 64, "shape", name, "m.yaml", 1, "", {}, "{}", {}), resources, workers)
        for name, client, resources, workers in (
            ("a", one, {}, None),
            ("b", one, {"host x": 0.0}, None),
            ("c", two, {}, None),
            ("d", one, {}, ["w"]),
            ("e", one, {}, None),
        )
    ]
    assert dispatcher._submitted(wanted) == [f"future of {name}" for name in "abcde"]
    assert one.sent == [(["a", "e"], {}, None), (["b"], {"host x": 0.0}, None), (["d"], {}, ["w"])]
    assert two.sent == [(["c"], {}, None)]


@pytest.mark.parametrize(
    ("rules", "looks", "wanted"),
    [
        ((), 0, []),
        ((("windows",),), 0, ["windows"]),
        ((("windows", "x86_64"),), 1, ["x86_64"]),
        ((("windows", "mac"),), 1, ["windows"]),
    ],
)
def test_who_is_there_is_asked_only_where_a_step_leaves_a_choice(
    rules: tuple[tuple[str, ...], ...], looks: int, wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.plan.hosts.rules", lambda *_: rules)
    workspace, client = SimpleNamespace(shared=object(), project=None), Scheduler()
    resolved = SimpleNamespace(step=None, params=None, inputs={})
    asks = Dispatcher("tcp://nobody:1", "here", workspace)  # type: ignore[arg-type]
    found = asks._resources(resolved, client)  # type: ignore[arg-type]
    assert [*found] == [on_worker.resource(name) for name in wanted]
    assert client.looks == looks


def test_threads_that_want_to_know_at_once_who_is_there_ask_once() -> None:
    client, release = Scheduler(), threading.Event()
    at_once = client.scheduler_info

    def slowly(n_workers: int) -> object:
        release.wait(0.3)
        return at_once(n_workers)

    client.scheduler_info = slowly  # type: ignore[method-assign]
    workspace = SimpleNamespace(shared=object(), project=None)
    asks = Dispatcher("tcp://nobody:1", "here", workspace)  # type: ignore[arg-type]
    with ThreadPoolExecutor(8) as threads:
        assert [*threads.map(asks._names, [client] * 8)] == [{"a": {"x86_64"}}] * 8
    assert client.looks == 1
