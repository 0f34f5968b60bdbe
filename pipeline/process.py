"""Child processes that never outlive us: own process group, output to a log file, all ended when we end."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

_running: set[subprocess.Popen[bytes]] = set()
_lock = threading.Lock()
_closing = False


def run(command: Sequence[str], *, log: Path, cwd: Path, env: Mapping[str, str]) -> int:
    """Run a command to its end with its output in `log`; the exit status, negative for a signal as in subprocess."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as stream:
        with _lock:
            if _closing:
                raise KeyboardInterrupt
            # Windows has no sessions; there CREATE_NEW_PROCESS_GROUP keeps Ctrl-C from reaching the child first.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=dict(env),
                start_new_session=sys.platform != "win32",
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            )
            _running.add(process)
        try:
            return process.wait()
        finally:
            _end(process)
            with _lock:
                _running.discard(process)


def end_all() -> None:
    """Kill every child and its descendants in the same group, and start no more."""
    global _closing
    with _lock:
        _closing = True
        children = tuple(_running)
    for process in children:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        if sys.platform == "win32":
            process.kill()
        else:
            # also reaps grandchildren left behind by a child that is already dead
            os.killpg(process.pid, signal.SIGKILL)


def exit_reason(status: int) -> str:
    """What an exit status means, e.g. `killed by signal 11 (SIGSEGV)` or `exit status 127`."""
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"killed by signal {-status} ({signal.Signals(-status).name})"
        return f"killed by signal {-status}"
    return f"exit status {status}" if status < 0x80000000 else f"exit status 0x{status:08X}"


atexit.register(end_all)
