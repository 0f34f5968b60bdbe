"""Locks between processes: one holder, gone afterwards, free when the holder dies, and nobody waits in silence."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from filelock import FileLock

from pipeline.processes import stopping
from pipeline.store import locks
from pipeline.store.locks import TakenError, held, try_held
from pipeline.store.scratch import Scratch
from pipeline.store.store import Store
from tests.support.project import ROOT

HOLDER = """\
import sys, time
from pathlib import Path
from pipeline.store.locks import try_held
with try_held(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until it is killed."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "held\n"
            yield child
        finally:
            child.kill()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.lock"


def test_a_lock_has_one_holder_and_leaves_no_file(path: Path) -> None:
    with try_held(path):
        refused: list[bool] = []

        def second() -> None:
            try:
                with try_held(path):
                    pass
            except TakenError:
                refused.append(True)

        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
        assert refused == [True]
        assert path.exists()
    assert not path.exists()


def test_a_lock_names_its_holder(path: Path) -> None:
    with holder(path) as child:
        assert locks.holder(path).startswith(f"process {child.pid} on ")
        assert not locks.collect(path), "its holder lives"
        with pytest.raises(TakenError), try_held(path):
            pass


def test_the_lock_of_a_holder_that_was_killed_is_free_and_is_collected(path: Path) -> None:
    with holder(path):
        pass
    assert path.exists()
    assert locks.collect(path)
    assert not path.exists()


def test_who_waits_for_one_that_dies_gets_the_lock(path: Path) -> None:
    got = threading.Event()

    def wait() -> None:
        with held(path, "it"):
            got.set()

    with holder(path) as child:
        thread = threading.Thread(target=wait)
        thread.start()
        child.kill()
        until(got.is_set)
    thread.join()
    assert not path.exists()


def test_who_waits_says_for_what_and_for_whom(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_SILENT_S", 0.0)
    told: list[str] = []
    with holder(path) as child, pytest.raises(TakenError), held(path, "the tests", tell=told.append, timeout_s=0.5):
        pass
    assert len(told) == 1
    assert told[0].startswith(f"waiting for the tests: process {child.pid} on ")


def test_who_waits_can_be_interrupted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = threading.Event()

    def wait() -> None:
        try:
            with held(path, "it"):
                pass
        except KeyboardInterrupt:
            stopped.set()

    with holder(path):
        thread = threading.Thread(target=wait)
        thread.start()
        monkeypatch.setattr(stopping, "_asked", True)
        until(stopped.is_set)
        thread.join()


def test_a_thread_that_is_stopped_between_two_locks_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop comes right after a lock's file was made, and everything is undone before the thread goes on."""
    made = FileLock.acquire

    def acquire(lock: FileLock, *, blocking: bool) -> object:
        answer = made(lock, blocking=blocking)
        monkeypatch.setattr(stopping, "_asked", True)
        return answer

    monkeypatch.setattr(FileLock, "acquire", acquire)
    undone: list[object] = []

    def work() -> None:
        with contextlib.suppress(KeyboardInterrupt), Scratch(tmp_path).folder():
            pass
        undone.append([*tmp_path.iterdir()])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert undone == [[]]


def test_once_all_is_undone_no_thread_makes_a_folder_or_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "_asked", True)
    stopping.undo_all(0)
    begun: list[str] = []

    def work() -> None:
        try:
            with stopping.undone(lambda: None, lambda: begun.append("made")):
                begun.append("ran")
        except KeyboardInterrupt:
            begun.append("stopped")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert begun == ["stopped"]


def test_many_that_want_one_lock_get_it_one_after_the_other(path: Path) -> None:
    inside: list[int] = []
    together: list[int] = []

    def work(number: int) -> None:
        for _ in range(5):
            with held(path, "it"):
                inside.append(number)
                together.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == [1] * 30
    assert not path.exists()


def test_space_is_freed_when_no_build_runs(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    freeing = threading.Event()

    def free() -> None:
        with store.alone():
            freeing.set()

    thread = threading.Thread(target=free)
    with store.in_use(), store.in_use():
        thread.start()
        assert not freeing.wait(0.5)
    until(freeing.is_set)
    thread.join()
    assert list((store.root / "locks").iterdir()) == []


def test_a_build_begins_when_space_was_freed(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    building = threading.Event()

    def build() -> None:
        with store.in_use():
            building.set()

    thread = threading.Thread(target=build)
    with store.alone():
        thread.start()
        assert not building.wait(0.5)
    until(building.is_set)
    thread.join()


def test_who_collects_and_is_first_at_a_new_lock_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, name = Store(tmp_path / "store"), uuid.UUID(int=1)
    monkeypatch.setattr(uuid, "uuid4", lambda: name)
    (store.root / "locks").mkdir(parents=True)
    for path, block in (
        (tmp_path / f"{name.hex}.lock", Scratch(tmp_path).folder),
        (store.root / "locks" / f"build-{name.hex}.lock", store.in_use),
    ):
        begun = threading.Event()

        def begin(block: Callable[[], AbstractContextManager[object]] = block, begun: threading.Event = begun) -> None:
            with block():
                begun.set()

        thread = threading.Thread(target=begin)
        with try_held(path):  # as Scratch.collect and Store.collect do
            thread.start()
            assert not begun.wait(0.3)
        until(begun.is_set)
        thread.join()


def test_a_build_that_died_keeps_nobody_from_freeing(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    (store.root / "locks").mkdir(parents=True)
    with holder(store.root / "locks" / "build-1.lock"):
        pass
    with store.alone():
        assert [path.name for path in (store.root / "locks").iterdir()] == ["gate.lock"]


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="permissions stop neither root nor Windows")
def test_of_a_store_that_cannot_be_written_nothing_is_freed_and_no_lock_is_needed(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir(mode=0o555)
    with Store(root).in_use():
        assert list(root.iterdir()) == []
