"""Handles Ctrl-C and similar signals: the process ends within two seconds and leaves nothing behind."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn

from pipeline.processes import process, stopping

INTERRUPTED = 130
"""The exit code; it is what shells report for a program that Ctrl-C ended."""
_MESSAGE = "Interrupted. What was built is kept: run the same command again to resume."
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
_GRACE_S = 1.0  # for threads to tidy up after themselves; most wait for a worker that is dead by then
_LAST_RESORT_S = 1.7


def install() -> None:
    """Have the first signal that asks this process to end raise KeyboardInterrupt in the main thread.

    Further ones are ignored: they would only disturb the tidying up. What the caller of this process ignores stays
    ignored (nohup).
    """
    for name in _SIGNALS:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    sys.excepthook = _at_the_end


def leave(
    say: Callable[[str], object] = print, *, message: str = f"\n{_MESSAGE}", exit_code: int = INTERRUPTED
) -> NoReturn:
    """End every child, tidy up, say how to resume, and end the process without waiting for its threads."""
    stopping.ask()
    process.end_all()
    stopping.undo_all(_GRACE_S)
    with contextlib.suppress(Exception):  # whoever read it may be gone
        say(message)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(exit_code)


def _interrupt(*_: object) -> None:
    if not stopping.asked():
        stopping.ask()
        # Not a threading.Thread: the main thread may be holding a lock that starting one takes.
        _thread.start_new_thread(_end_at_last, ())
        raise KeyboardInterrupt


def _end_at_last() -> None:
    """For when the main thread can't: it is stuck in native code, or something swallowed the exception."""
    time.sleep(_LAST_RESORT_S)
    process.end_all()
    stopping.undo_all(0)
    with contextlib.suppress(OSError):
        os.write(2, f"\n{_MESSAGE}\n".encode())
    os._exit(INTERRUPTED)


def _at_the_end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What reaches the top of the main thread: an interrupt before or after the run, or a bug."""
    if issubclass(kind, KeyboardInterrupt):
        leave()
    sys.__excepthook__(kind, error, trace)
