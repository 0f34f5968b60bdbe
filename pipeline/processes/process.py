"""Starts child processes that never outlive us, nor do their descendants: each in its own group, its output in a log.

On Linux a group is a process group with a :mod:`pipeline.processes.lifeline`, on Windows a
:mod:`pipeline.processes.job_object`. The system ends either when we end for whatever reason.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO

from pipeline.processes import lifeline
from pipeline.shortage import no_more_processes

During = Callable[[int], AbstractContextManager[object]]
"""Given the id of a child, returns the context that is open while the child runs."""

_ends: dict[int, Callable[[], None]] = {}
"""By the id of each child, the function that ends its group."""
_lock = threading.Lock()
_closing = False


def run(
    command: Sequence[str], *, log: Path, cwd: Path, env: Mapping[str, str], during: During = lambda _: nullcontext()
) -> int:
    """Run a command to its end with its output in `log`; the exit status, negative for a signal as in subprocess."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as stream:
        process = start(command, stdin=subprocess.DEVNULL, log=stream, cwd=cwd, env=env)
        try:
            with during(process.pid):
                _await_end(process)
        finally:
            end(process.pid)  # also grandchildren left behind by a child that is already dead
            process.wait()
        return process.returncode


def start(
    command: Sequence[str], *, stdin: int, log: IO[bytes], cwd: Path, env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a command in its own group. :func:`end` ends the group, and the system does when we end.

    Raises WorkerError if no more processes may be.
    """
    with _lock:
        if _closing:
            raise KeyboardInterrupt
        try:
            process, ends = _begin(command, stdin, log, cwd, dict(env))
        except BlockingIOError as error:
            raise no_more_processes(error) from error
        _ends[process.pid] = ends
    return process


@contextmanager
def adopted(child: int, writing: int) -> Iterator[Callable[[], None]]:
    """Treat a process that another one started for us as our child; its group is ended with the block, or when we end.

    `writing` is our end of its lifeline. Yields a function to call once the starter has ended the group and reaped the
    process, whose number may then be another's.
    """

    def release() -> None:
        with _lock:
            if child in _ends:
                _ends[child] = lambda: os.close(writing)

    with _lock:
        _ends[child] = lambda: _end_group(child, writing)
        closing = _closing
    try:
        if closing:
            raise KeyboardInterrupt
        yield release
    finally:
        end(child)


def end_all() -> None:
    """End every child and what it started, and start no more."""
    global _closing
    with _lock:
        _closing = True
        children = tuple(_ends)
    for child in children:
        end(child)


def ending() -> bool:
    """Whether :func:`end_all` was called; a killed child was then killed by us."""
    return _closing


def end(child: int) -> None:
    """End what is left of a child's group, and forget it."""
    with _lock:
        ends = _ends.pop(child, None)
    if ends is not None:
        ends()


if sys.platform == "win32":
    from pipeline.processes import job_object

    def _begin(
        command: Sequence[str], stdin: int, log: IO[bytes], cwd: Path, env: dict[str, str]
    ) -> tuple[subprocess.Popen[bytes], Callable[[], None]]:
        """Start a command. Returns its process, and the function that ends its group."""
        import psutil

        # A process group of its own keeps Ctrl-C from reaching the child before us.
        flags = subprocess.CREATE_NEW_PROCESS_GROUP | job_object.CREATE_SUSPENDED
        job = job_object.Job(job_object.kernel())
        try:
            process = subprocess.Popen(
                command, stdin=stdin, stdout=log, stderr=subprocess.STDOUT, cwd=cwd, env=env, creationflags=flags
            )
            try:
                job.add(process.pid)
                psutil.Process(process.pid).resume()
            except BaseException:
                process.kill()
                raise
        except BaseException:
            job.end()
            raise
        return process, job.end

    def _await_end(process: subprocess.Popen[bytes]) -> None:
        """Wait for the end of a child."""
        process.wait()

    def _end_group(child: int, writing: int) -> None:
        """Does nothing: no process is adopted on Windows."""

else:

    def _begin(
        command: Sequence[str], stdin: int, log: IO[bytes], cwd: Path, env: dict[str, str]
    ) -> tuple[subprocess.Popen[bytes], Callable[[], None]]:
        """Start a command. Returns its process, and the function that ends its group."""
        reading, writing = os.pipe()
        try:
            process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=env | {lifeline.VARIABLE: str(reading)},
                pass_fds=[reading],
                start_new_session=True,
            )
            with contextlib.suppress(OSError):  # it has ended already
                lifeline.arm(reading, process.pid)
        except BaseException:
            os.close(writing)
            raise
        finally:
            os.close(reading)
        return process, lambda: _end_group(process.pid, writing)

    def _await_end(process: subprocess.Popen[bytes]) -> None:
        """Wait for the end of a child without reaping it, so that its group's number is not given to another."""
        with contextlib.suppress(ChildProcessError):  # somebody else reaps our children
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

    def _end_group(child: int, writing: int) -> None:
        with contextlib.suppress(OSError):  # nothing is left of it
            os.killpg(child, signal.SIGKILL)
        os.close(writing)


atexit.register(end_all)
