"""Children that are copies of a worker which has imported what they need: imports take longer than what they do.

Only a worker that was forked itself (:mod:`pipeline.build.template`) may make one, and only while it has a single
thread: a copy of a process with several could hang. It stays in the worker's process group, and on its lifeline.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from pipeline.processes.exit_status import exit_reason

_FAILED = 70  # EX_SOFTWARE of sysexits.h
_WAITING = 4
"""By how many times longer than its CPU seconds a child may take that waits."""


class _State:
    allowed = False


def allow() -> None:
    """This process is a worker that has nothing of a library in it that its copies must not share."""
    _State.allowed = True


def is_allowed() -> bool:
    """Whether this process may make such children now."""
    return _State.allowed and sys.platform == "linux" and len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208


class Child:
    """A child that does some work; `number` is its process id."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._status: int | None = None

    def wait(self) -> int:
        """The exit status, as from subprocess, once it has ended; the same however often it is asked for."""
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.number, 0)[1])
        return self._status


def start(work: Callable[[], object], log: Path | None = None) -> Child:
    """Begin some work in a child, which somebody has to wait for.

    What it prints goes to our output, or to the end of `log`. Its standard input is ours.
    """
    assert sys.platform != "win32"
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        _do(work, log)
    return Child(child)


def attempt(work: Callable[[], object], cpu_s: int) -> str:
    """Do some work that may end its process or never end: in a child of `cpu_s` CPU seconds where one may be made.

    Returns an empty text if it was done, or the reason why it was not. Elsewhere it is done in this process.
    """
    if not is_allowed():
        try:
            work()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def limited() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
        signal.alarm(_WAITING * cpu_s)
        work()

    status = start(limited).wait()
    if status in (-signal.SIGXCPU, -signal.SIGALRM):
        return f"it takes more than {cpu_s} seconds"
    return "" if status == 0 else "it raises an error" if status == _FAILED else f"its process is {exit_reason(status)}"


def _do(work: Callable[[], object], log: Path | None) -> NoReturn:
    status = _FAILED
    try:
        if log is not None:
            with log.open("ab") as stream:
                os.dup2(stream.fileno(), 1)
                os.dup2(stream.fileno(), 2)
        work()
        status = 0
    except SystemExit as end:
        status = 0 if end.code is None else end.code if isinstance(end.code, int) else _FAILED
    except BaseException:
        with contextlib.suppress(OSError):  # the log's disk may be full
            traceback.print_exc()
    finally:
        leave(status)


def leave(status: int) -> NoReturn:
    """End this process, a copy of another, as soon as what it printed is written."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)  # what native code printed
    os._exit(status)
