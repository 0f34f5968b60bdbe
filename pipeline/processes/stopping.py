"""Knows whether this build is being stopped, and tidies up before its process ends.

Ctrl-C reaches only the main thread, and the process ends within two seconds of it, whatever other threads do. So a
thread that loops for long calls :func:`check`, and a block that must leave nothing behind is inside :func:`undone`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_asked = False
_changed = threading.Condition()
_blocks: dict[object, Callable[[], object] | None] = {}
"""For each open block, the function to call at its end; None while that runs."""


def ask() -> None:
    """Ask every thread to stop. A signal handler may call it, as it takes no lock."""
    global _asked
    _asked = True


def asked() -> bool:
    """Whether this build is being stopped."""
    return _asked


def check() -> None:
    """Raise KeyboardInterrupt if this build is being stopped."""
    if _asked:
        raise KeyboardInterrupt


@contextmanager
def undone(undo: Callable[[], object], do: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Call `do`, then `undo` once: when the block ends, or before the process is stopped within it.

    The second is another thread's work. It finds `do` either not begun or finished, so `do` is brief. What `do` raises
    passes on, after `undo`. Once we are stopping, only the main thread, which tidies up, may open a block; others get a
    KeyboardInterrupt and `do` is not called.
    """
    block = object()
    with _changed:
        if threading.current_thread() is not threading.main_thread():
            check()
        _blocks[block] = undo
        try:
            do()
        except BaseException:
            _undo(block)
            raise
    try:
        yield
    finally:
        _undo(block)


def undo_all(within_s: float) -> None:
    """Wait some seconds for open blocks to end; then call `undo` for those that have not."""
    with _changed:
        _changed.wait_for(lambda: not _blocks, within_s)
        left = [*reversed(_blocks)]  # a folder goes before the lock beside it
    for block in left:
        _undo(block)


def _undo(block: object) -> None:
    with _changed:
        undo = _blocks.get(block)
        if undo is None:  # another thread has done so, or does
            return
        _blocks[block] = None
    try:
        with contextlib.suppress(OSError):
            undo()
    finally:
        with _changed:
            del _blocks[block]
            _changed.notify_all()
