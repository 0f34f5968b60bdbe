"""A build that runs, its processes by what they are, and whether any of them is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from tests.support.project import Project, inherited

MARKER = "PIPELINE_TEST_BUILD"
_POLL_S = 0.0005


@dataclass(frozen=True)
class Ended:
    """How a build ended: exit status, what it printed, and when, by `time.monotonic`."""

    status: int
    text: str
    at: float


class Build:
    """A command line of doit that was started and is not waited for. All its processes carry a marker.

    As a context manager it leaves none of them behind.
    """

    def __init__(self, project: Project, *arguments: str, log: Path, **environ: str) -> None:
        self.marker = uuid.uuid4().hex
        self.started = time.monotonic()
        self.project = project
        self._log = log
        own = {"PIPELINE_STORE": str(project.store), MARKER: self.marker}
        with log.open("wb") as stream:  # a pipe would stay open as long as an orphan has it
            self._process = subprocess.Popen(
                [sys.executable, "-m", "doit", *arguments],
                cwd=project.root,
                env=inherited() | project.environ | own | environ,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                preexec_fn=None if sys.platform == "win32" else _heed_signals,
            )
        self.doit = psutil.Process(self._process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()

    def is_over(self) -> bool:
        """Whether doit has ended; its children may not have."""
        return self._process.poll() is not None

    def text(self) -> str:
        """What it has printed so far."""
        return self._log.read_text("utf-8", "replace")

    def end(self, within_s: float) -> Ended:
        """Wait for doit to end; raises TimeoutExpired."""
        status = self._process.wait(within_s)
        return Ended(status, self.text(), time.monotonic())

    def template(self) -> list[psutil.Process]:
        """The process that warm workers are forked from."""
        return [process for process in _children(self.doit) if "pipeline.build.template" in _command(process)]

    def workers(self) -> list[psutil.Process]:
        """The processes that run a step now, warm or fresh."""
        forked = [worker for template in self.template() for worker in _children(template)]
        return forked + [process for process in _children(self.doit) if "pipeline.build.worker" in _command(process)]

    def grandchildren(self) -> list[psutil.Process]:
        """The processes that a step has started."""
        return [process for worker in self.workers() for process in _children(worker)]

    def alive(self) -> list[psutil.Process]:
        """Every process that this build has started, itself included, wherever it hangs in the tree."""
        return [process for process in psutil.process_iter() if _marker(process) == self.marker]

    def orphans(self, within_s: float) -> list[str]:
        """What is left of its processes after so many seconds; empty as soon as nothing is."""
        deadline = time.monotonic() + within_s
        while (left := self.alive()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return [f"{process.pid} {_command(process)}" for process in left]

    def destroy(self) -> None:
        """Kill all that is left of it."""
        while left := self.alive():
            for process in left:
                kill(process)
            time.sleep(0.02)
        self._process.wait()


def kill(process: psutil.Process) -> bool:
    """SIGKILL to a process; False if it was gone."""
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return False
    return True


def until(condition: Callable[[], bool], build: Build, within_s: float) -> bool:
    """Wait until the condition holds; False if the build ended first, or the time is up.

    The build has the processor half of the time at least: to look through all processes takes milliseconds.
    """
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        began = time.monotonic()
        if condition():
            return True
        if build.is_over():
            return False
        time.sleep(max(_POLL_S, time.monotonic() - began))
    return False


def leftovers(*roots: Path) -> list[str]:
    """What a finished build must not leave in its folders: temporary files and folders, locks, requests, answers."""
    found = []
    for root in roots:
        for folder, folders, files in os.walk(root):
            at = Path(folder)
            if at.name in ("tmp", "locks"):
                found += [str(at / name) for name in (*folders, *files)]
            found += [str(at / name) for name in files if name.endswith((".tmp", ".lock"))]
    return sorted(set(found))


def tree(root: Path) -> Mapping[str, bytes]:
    """Every file under a folder by its relative name, but reports: those tell of runs, which differ."""
    found = (path for path in root.rglob("*") if path.is_file() and path.name != "report.html")
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in found}


def _heed_signals() -> None:
    """Signals that a shell lets its background jobs ignore, and so us and our children."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        children: list[psutil.Process] = process.children()
    except psutil.Error:
        return []
    return children


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _marker(process: psutil.Process) -> str | None:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return str(process.environ().get(MARKER))
    except (psutil.Error, OSError):
        return None
