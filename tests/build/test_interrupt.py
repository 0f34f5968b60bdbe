"""Ctrl-C ends a build at once, whatever is going on, and leaves nothing that would have to be tidied up."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pipeline.doit_adapter import Answers
from pipeline.processes import stopping
from tests.support import guests
from tests.support.build_processes import Build, leftovers, until
from tests.support.project import ROOT, Project

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="sends signals")

_WITHIN_S = 20.0
"""It takes less than two seconds where the machine has nothing else to do; otherwise it would take minutes."""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project with a step that hangs, and ignores all that can be ignored."""
    return guests.create(tmp_path / "project", tmp_path / "store", guests.HANGS)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Build]]:
    """Starts builds, and ends them when the test does."""
    builds: list[Build] = []

    def started(project: Project, *arguments: str, **environ: str) -> Build:
        builds.append(Build(project, *arguments, log=tmp_path / f"log{len(builds)}", **environ))
        return builds[-1]

    yield started
    for build in builds:
        build.destroy()


def interrupted(build: Build, *numbers: int) -> None:
    """Send the signals; it must end, say how to resume, and leave nothing."""
    for number in numbers:
        build.doit.send_signal(number)
    ended = build.end(_WITHIN_S)
    assert ended.status == 130, ended.text
    assert "Interrupted. What was built is kept: run the same command again to resume." in ended.text
    assert "Traceback" not in ended.text
    assert build.orphans(within_s=10) == []


def hangs(project: Project) -> bool:
    return bool([*project.store.glob("tmp/*/hangs")])


def left_in(project: Project) -> list[str]:
    return leftovers(project.store, project.root / ".build", project.root / "artifacts")


@pytest.mark.parametrize(
    "numbers",
    [
        (signal.SIGINT, signal.SIGINT, signal.SIGTERM),
        (signal.SIGTERM,),
        pytest.param((signal.SIGINT,), marks=pytest.mark.slow),
        pytest.param((signal.SIGHUP,), marks=pytest.mark.slow),
    ],
    ids=["several", "SIGTERM", "SIGINT", "SIGHUP"],
)
def test_while_a_worker_runs_that_ignores_signals(
    project: Project, start: Callable[..., Build], numbers: tuple[int, ...]
) -> None:
    build = start(project, "build")
    assert until(lambda: hangs(project), build, 60), build.text()
    interrupted(build, *numbers)
    assert left_in(project) == []


@pytest.mark.slow
def test_while_another_build_makes_the_same_step(project: Project, start: Callable[..., Build]) -> None:
    first = start(project, "build")
    assert until(lambda: hangs(project), first, 60), first.text()
    second = start(project, "build")
    assert until(lambda: "waiting for" in second.text(), second, 60), second.text()
    interrupted(second, signal.SIGINT)
    assert not first.is_over()
    interrupted(first, signal.SIGINT)
    assert left_in(project) == []


def test_while_a_file_is_hashed(project: Project, start: Callable[..., Build]) -> None:
    with (project.root / "model" / "large.bin").open("wb") as stream:
        stream.truncate(1 << 42)  # of which not a block is on the disk; hashing it would take an hour
    project.edit(f"configs/{guests.MODEL}.yaml", "buckets:", "files: [large.bin]\nbuckets:")
    build = start(project, "build")
    assert until(lambda: any(path.endswith("large.bin") for path in opened(build)), build, 60), build.text()
    interrupted(build, signal.SIGINT)
    assert left_in(project) == []


def opened(build: Build) -> list[str]:
    """Files that its processes have open."""
    with contextlib.suppress(psutil.Error):
        return [file.path for process in build.alive() for file in process.open_files()]
    return []


def test_while_a_hub_does_not_answer(project: Project, start: Callable[..., Build]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        path = f"configs/{guests.MODEL}.yaml"
        project.edit(path, "source: {path: ../model}", "source: {hub: some/model, revision: main}")
        build = start(project, "build", HF_ENDPOINT=f"http://127.0.0.1:{server.getsockname()[1]}", HF_HUB_OFFLINE="0")
        server.settimeout(60)
        connection, _ = server.accept()
        with connection:
            interrupted(build, signal.SIGTERM)
    assert left_in(project) == []


def test_before_anything_runs(project: Project, start: Callable[..., Build]) -> None:
    build = start(project, "list", "--all")
    until(lambda: build.doit.memory_info().rss > 20 << 20, build, 60)
    build.doit.send_signal(signal.SIGINT)
    build.end(_WITHIN_S)
    assert left_in(project) == []


@pytest.mark.parametrize("stuck", ["except KeyboardInterrupt: time.sleep(600)", "finally: lock.acquire()"])
def test_a_main_thread_that_can_not_end_is_not_waited_for(stuck: str) -> None:
    code = (
        "import threading, time; from pipeline.build import interrupt; from pipeline.processes import stopping\n"
        "lock = threading.Lock(); lock.acquire()\n"
        "interrupt.install()\n"
        "with stopping.undone(lambda: print('undone', flush=True)):\n"
        f"  try: print('ready', flush=True); time.sleep(600)\n  {stuck}\n"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "undone\n")
    assert "Interrupted. What was built is kept" in err


class TestUndone:
    """Blocks that must tidy up, within this process."""

    @pytest.fixture(autouse=True)
    def _reset(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(stopping, "_asked", False)

    def test_it_is_called_once_at_the_end_of_its_block(self) -> None:
        calls: list[int] = []
        with stopping.undone(lambda: calls.append(1)):
            assert calls == []
        stopping.undo_all(0)
        assert calls == [1]

    def test_it_is_called_for_a_block_that_does_not_end(self) -> None:
        calls: list[int] = []
        begun, go_on = threading.Event(), threading.Event()

        def block() -> None:
            with stopping.undone(lambda: calls.append(1)):
                begun.set()
                go_on.wait(60)

        thread = threading.Thread(target=block)
        thread.start()
        begun.wait(60)
        stopping.undo_all(0.05)
        assert calls == [1]
        go_on.set()
        thread.join()
        assert calls == [1]

    def test_no_thread_begins_one_when_all_is_being_stopped(self) -> None:
        raised: list[bool] = []

        def block() -> None:
            try:
                with stopping.undone(lambda: None):
                    raised.append(False)
            except KeyboardInterrupt:
                raised.append(True)

        stopping.ask()
        thread = threading.Thread(target=block)
        thread.start()
        thread.join()
        block()
        assert raised == [True, False], "the main thread may, as it saves what was learned"


def test_ctrl_c_while_modules_are_imported_is_told_in_a_line() -> None:
    strike = """
import os, runpy, signal, sys
class Strike:
    def find_spec(self, name, *_):
        if name == "pipeline.upkeep.nothing_to_do":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Strike())
sys.argv = ["doit", "list"]
runpy.run_module("doit", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", strike], cwd=ROOT, capture_output=True, text=True, encoding="utf-8")
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "\nInterrupted: run the same command again.\n"


def test_who_waits_for_an_answer_wakes_up_and_waits_on() -> None:
    answers = Answers()
    threading.Timer(0.5, answers.put, ("late",)).start()
    assert answers.get() == "late"
