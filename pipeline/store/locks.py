"""Locks between processes: files that are locked while held, gone afterwards, and freed by the system if we die.

A lock file names its holder, so that whoever waits can say for whom.
"""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from pipeline.system import stopping

_POLL_S = 0.1  # and so how long an interrupt may have to wait
_SILENT_S = 5.0
_LOCKED_BYTES = 1  # at the start of the file, where Windows lets nobody else read


class TakenError(Exception):
    """Somebody else holds the lock."""


@contextmanager
def try_held(path: Path) -> Iterator[None]:
    """Hold a lock whose file is in an existing folder.

    Raises:
        TakenError: somebody else holds it.
        OSError: the file can't be made.
    """
    lock = FileLock(path, thread_local=False)  # who undoes may be another thread
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise TakenError(path) from None

    def release() -> None:
        if os.name == "nt":  # where a file that is open can't be removed; if others wait for it, they will
            lock.release()
            path.unlink(missing_ok=True)
        else:  # before the release: whoever waits sees that the file it has open is gone, and opens the next
            path.unlink(missing_ok=True)
            lock.release()

    with undone(release):
        _sign(path)
        yield


@contextmanager
def undone(undo: Callable[[], object]) -> Iterator[None]:
    """As :func:`stopping.undone`; but while we are stopping, the main thread may still save what was learned."""
    if stopping.asked() and threading.current_thread() is threading.main_thread():
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                undo()
    else:
        with stopping.undone(undo):
            yield


@contextmanager
def held(
    path: Path, what: str, *, tell: Callable[[str], None] = print, timeout_s: float = float("inf")
) -> Iterator[None]:
    """Hold a lock, waiting for it if need be; `what` says after some seconds of waiting what it is for.

    Raises:
        KeyboardInterrupt: we are to stop.
        TakenError: it could not be had in time.
        OSError: its file can't be made.
    """
    with contextlib.ExitStack() as stack:
        since, told = time.monotonic(), False
        while True:
            try:
                stack.enter_context(try_held(path))
                break
            except TakenError:
                waited_s = time.monotonic() - since
                if waited_s > timeout_s:
                    raise
            stopping.check()
            if waited_s > _SILENT_S and not told:
                told = True
                tell(f"waiting for {what}: {holder(path)} is at it")
            time.sleep(_POLL_S)
        yield


def collect(path: Path) -> bool:
    """Remove a lock file if its holder died before it could; whether it is gone."""
    try:
        with try_held(path):
            pass
    except (TakenError, OSError):
        return False
    return True


def holder(path: Path) -> str:
    """Who holds a lock, as they signed it."""
    try:
        with path.open("rb", buffering=0) as stream:
            stream.seek(_LOCKED_BYTES)
            signed = stream.read(300).decode("utf-8", "replace").strip()
    except OSError:
        signed = ""
    return signed or "another process"


def _sign(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("r+b", buffering=0) as stream:
        stream.write(b"\n" * _LOCKED_BYTES if os.name != "nt" else b"")
        stream.seek(_LOCKED_BYTES)
        stream.write(f"process {os.getpid()} on {platform.node() or 'this machine'}\n".encode())
