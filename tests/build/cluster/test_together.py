"""What many threads ask for at the same time is asked for in one go, and each gets its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from pipeline.build.cluster import dispatcher, on_worker
from pipeline.build.cluster.dispatcher import Dispatcher, SubmissionError, Wanted, submitted
from pipeline.build.cluster.job import StepJob
from pipeline.build.cluster.together import Together
from pipeline.errors import WaitingError

_PATIENCE_S = 30.0


class Held:
    """Doubles numbers; the first call ends when `free` is set."""

    def __init__(self) -> None:
        self.begun, self.free = threading.Event(), threading.Event()
        self.calls: list[list[int]] = []

    def __call__(self, numbers: Sequence[int]) -> list[int | Exception]:
        self.calls.append([*numbers])
        if len(self.calls) == 1:
            self.begun.set()
            assert self.free.wait(_PATIENCE_S)
        if 13 in numbers:
            raise ValueError("unlucky")
        return [2 * number if number != 7 else ValueError("odd") for number in numbers]


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


def test_an_exception_for_one_is_raised_to_none_of_those_asked_for_with_it() -> None:
    held, got = asked([1, 2, 7, 3])
    assert sorted(held.calls[1]) == [2, 3, 7]
    assert got == [2, 4, "odd", 6]


class Scheduler:
    """In place of a Dask client: notes the messages that it would send, and how often it was asked who is there."""

    status = "running"

    def __init__(self, *workers: str) -> None:
        self.workers = [*workers] or ["a"]
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
        announced = on_worker.resources(["x86_64"])
        return {"workers": {f"tcp://{name}": {"name": name, "resources": announced} for name in self.workers}}


def wanted(client: object, name: str, resources: dict[str, float], workers: list[str] | None) -> Wanted:
    job = StepJob("0" * 64, "shape", name, "m.yaml", 1, "", {}, "{}", {})
    return Wanted(client, job, resources, workers)


def test_a_message_has_the_steps_of_equal_demands_and_futures_are_in_the_order_of_steps() -> None:
    one, two = Scheduler(), Scheduler()
    steps = [
        wanted(one, "a", {}, None),
        wanted(one, "b", {"host x": 0.0}, None),
        wanted(two, "c", {}, None),
        wanted(one, "d", {}, ["w"]),
        wanted(one, "e", {}, None),
        wanted(one, "f", {}, []),
    ]
    assert submitted(steps) == [f"future of {name}" for name in "abcdef"]
    assert one.sent == [(["a", "e"], {}, None), (["b"], {"host x": 0.0}, None), (["d"], {}, ["w"]), (["f"], {}, [])]
    assert two.sent == [(["c"], {}, None)]


def test_a_client_that_is_closed_fails_its_own_steps_alone() -> None:
    distributed = pytest.importorskip("distributed")
    with cluster_of_threads() as at, distributed.Client(at, set_as_default=False) as live:
        closed = distributed.Client(at, set_as_default=False)
        closed.close()
        steps = [wanted(client, name, {}, None) for client, name in ((closed, "a"), (live, "b"), (closed, "c"))]
        one, other, two = submitted(steps)
        assert [type(one), type(two)] == [SubmissionError] * 2
        assert not isinstance(other, SubmissionError)
        assert one is not two
        assert str(one).startswith("ClosedClientError: ")
        with pytest.raises(RuntimeError, match="was not started by"):  # the worker of a test is none of ours
            other.result(timeout=_PATIENCE_S)


@contextmanager
def cluster_of_threads() -> Iterator[str]:
    """The address of a scheduler with one worker, in this process."""
    from distributed import LocalCluster

    with LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0") as made:
        yield made.scheduler_address


@pytest.fixture
def asks(monkeypatch: pytest.MonkeyPatch) -> Dispatcher:
    """The dispatcher of a build whose steps run on any host."""
    monkeypatch.setattr("pipeline.plan.hosts.rules", lambda *_: ())
    return Dispatcher("tcp://nobody:1", "here", SimpleNamespace(shared=object(), project=None))  # type: ignore[arg-type]


STEP = SimpleNamespace(step=SimpleNamespace(id="shape:m/x"), params=None, inputs={})


def test_where_all_workers_were_refused_a_step_waits_for_another(
    asks: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "_KNOWN_S", 0.0)
    monkeypatch.setattr(dispatcher, "_AWAKE_S", 0.01)
    client = Scheduler("old")
    assert asks._others(STEP, client) is None  # type: ignore[arg-type]
    asks._refused["old"] = "it runs another commit"
    asks._met_s = time.monotonic()
    with ThreadPoolExecutor(1) as thread:
        others = thread.submit(asks._others, STEP, client)  # type: ignore[arg-type]
        until_looked(client, 3)
        assert not others.done()
        client.workers.append("new")
        assert others.result(_PATIENCE_S) == ["new"]

        client.workers.remove("new")
        looks = client.looks
        others = thread.submit(asks._others, STEP, client)  # type: ignore[arg-type]
        until_looked(client, looks + 3)
        assert not others.done()
        client.status = "closed"
        with pytest.raises(OSError, match="scheduler"):
            others.result(_PATIENCE_S)

    client.status = "running"
    monkeypatch.setattr(dispatcher, "_RETURN_S", 0.1)
    with pytest.raises(WaitingError, match="no worker of the cluster may run shape:m/x"):
        asks._others(STEP, client)  # type: ignore[arg-type]


def test_a_worker_that_is_cut_off_is_asked_where_there_is_no_other(
    asks: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "_KNOWN_S", 0.0)
    monkeypatch.setattr("pipeline.plan.hosts.rules", lambda *_: ())
    asks._workspace = SimpleNamespace(project=None)  # type: ignore[assignment]
    client = Scheduler("off")
    assert asks._chosen(STEP, client, ()) is None  # type: ignore[arg-type]
    assert asks._chosen(STEP, client, {"off"}) is None  # type: ignore[arg-type]
    client.workers.append("on")
    assert asks._chosen(STEP, client, {"off"}) == ["on"]  # type: ignore[arg-type]
    asks._refused["on"] = "it runs another commit"
    assert asks._chosen(STEP, client, {"off"}) == ["off"]  # type: ignore[arg-type]


def until_looked(client: Scheduler, times: int) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while client.looks < times:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_step_asked_of_workers_that_are_gone_is_asked_again_of_one_that_has_come(
    asks: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_KNOWN_S", "_AWAKE_S", "_LOOKS_S"):
        monkeypatch.setattr(dispatcher, name, 0.01)
    client = Scheduler("good")
    future = SimpleNamespace(add_done_callback=lambda _: None, done=lambda: False)
    with ThreadPoolExecutor(1) as thread:
        waits = thread.submit(asks._wait, future, client, STEP, ["good"])  # type: ignore[arg-type]
        until_looked(client, 3)
        assert not waits.done()
        client.workers = ["new"]
        try:
            with pytest.raises(OSError, match="another has come"):
                waits.result(_PATIENCE_S)
        finally:
            client.status = "closed"  # ends the thread of a test that failed


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


def test_threads_that_want_to_know_at_once_who_is_there_ask_once(
    asks: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "_KNOWN_S", _PATIENCE_S)
    client, all_want = Scheduler(), threading.Barrier(8)
    at_once = client.scheduler_info

    def slowly(n_workers: int) -> object:
        time.sleep(0.3)  # in which the other threads come to want the same
        return at_once(n_workers)

    client.scheduler_info = slowly  # type: ignore[method-assign]

    def names(_: int) -> dict[str, set[str]]:
        all_want.wait(_PATIENCE_S)
        return asks._names(client)

    with ThreadPoolExecutor(8) as threads:
        assert [*threads.map(names, range(8))] == [{"a": {"x86_64"}}] * 8
    assert client.looks == 1
