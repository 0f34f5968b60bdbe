"""Child processes that never outlive us: own process group, output to a log file, all ended when we end."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_groups: set[int] = set()
_lock = threading.Lock()
_closing = False


def run(command: Sequence[str], *, log: Path, cwd: Path, env: Mapping[str, str]) -> int:
    """Run a command to its end with its output in `log`; the exit status, negative for a signal as in subprocess."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as stream:
        process = start(command, stdin=subprocess.DEVNULL, log=stream, cwd=cwd, env=env)
        with ended_at_last(process.pid):
            return process.wait()


def start(
    command: Sequence[str], *, stdin: int, log: IO[bytes], cwd: Path, env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a command in a process group of its own, with which it ends when we end."""
    with _lock:
        if _closing:
            raise KeyboardInterrupt
        # Windows has no sessions; there CREATE_NEW_PROCESS_GROUP keeps Ctrl-C from reaching the child first.
        process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=dict(env),
            start_new_session=sys.platform != "win32",
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
        _groups.add(process.pid)
    return process


@contextmanager
def ended_at_last(group: int) -> Iterator[None]:
    """Whatever happens inside, the process group is ended afterwards, and when we end."""
    with _lock:
        _groups.add(group)
        closing = _closing
    try:
        if closing:
            raise KeyboardInterrupt
        yield
    finally:
        end(group)  # also grandchildren left behind by a child that is already dead


def end_all() -> None:
    """Kill every child and its descendants in the same group, and start no more."""
    global _closing
    with _lock:
        _closing = True
        groups = tuple(_groups)
    for group in groups:
        _kill(group)


def ending() -> bool:
    """Whether :func:`end_all` was called, so that a child that was killed was killed by us."""
    return _closing


def end(group: int) -> None:
    """Kill what is left of a process group, and forget it."""
    _kill(group)
    with _lock:
        _groups.discard(group)


def _kill(group: int) -> None:
    with contextlib.suppress(OSError):
        if sys.platform == "win32":
            os.kill(group, signal.SIGTERM)  # which ends it at once there
        else:
            os.killpg(group, signal.SIGKILL)


def exit_reason(status: int) -> str:
    """What an exit status means, e.g. `killed by signal 11 (SIGSEGV)` or `exit status 127`."""
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"killed by signal {-status} ({signal.Signals(-status).name})"
        return f"killed by signal {-status}"
    return f"exit status {status}" if status < 0x80000000 else f"exit status 0x{status:08X}"


atexit.register(end_all)
