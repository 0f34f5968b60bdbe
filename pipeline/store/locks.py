"""Locks between processes: each is a file that is removed on release, and that the system unlocks if we die.

A lock file names its holder, so that a waiting process can tell whom it waits for.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.processes import stopping

_POLL_S = 0.1  # also the longest delay of an interrupt
_SILENT_S = 5.0
_LOCKED_BYTES = 1  # at the start of the file: Windows lets no other process read these


class TakenError(Exception):
    """Another process or thread holds the lock."""


@contextmanager
def try_held(path: Path) -> Iterator[None]:
    """Hold a lock whose file is in an existing folder.

    Raises:
        TakenError: another process or thread holds it.
        OSError: the file can't be made.
    """
    from filelock import FileLock, Timeout  # which takes as long to import as PyYAML: only for who locks

    lock = FileLock(path, thread_local=False)  # when we are stopped, another thread releases it

    def acquire() -> None:
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise TakenError(path) from None

    def release() -> None:
        if not lock.is_locked:  # the file is another's
            return
        if os.name == "nt":  # Windows removes no open file; a waiting process removes it later
            lock.release()
            path.unlink(missing_ok=True)
        else:  # removed first, so that a waiting process sees its open file gone and opens the next one
            path.unlink(missing_ok=True)
            lock.release()

    with undone(release, acquire):
        _sign(path)
        yield


@contextmanager
def undone(undo: Callable[[], object], do: Callable[[], object]) -> Iterator[None]:
    """As :func:`stopping.undone`, but lets the main thread save caches while we are stopping."""
    if stopping.asked() and threading.current_thread() is threading.main_thread():
        try:
            do()
            yield
        finally:
            with contextlib.suppress(OSError):
                undo()
    else:
        with stopping.undone(undo, do):
            yield


@contextmanager
def held(
    path: Path, what: str, *, tell: Callable[[str], None] = print, timeout_s: float = float("inf")
) -> Iterator[None]:
    """Wait for a lock and hold it. After some seconds `tell` gets a line that says that we wait for `what`.

    Raises:
        KeyboardInterrupt: we are stopping.
        TakenError: the lock was not free within `timeout_s`.
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
    """Remove the lock file of a holder that died. Returns whether it is gone."""
    try:
        with try_held(path):
            pass
    except (TakenError, OSError):
        return False
    return True


def holder(path: Path) -> str:
    """The holder of a lock, by its signature in the file."""
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
        stream.write(f"process {os.getpid()} on {socket.gethostname() or 'this machine'}\n".encode())
