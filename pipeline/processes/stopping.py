"""Whether this build is being stopped, and what must be tidied up before its process ends.

Ctrl-C reaches the main thread alone, and the process ends within two seconds of it, whatever its other threads do. So
a thread that loops for long calls :func:`check`, and what must not be left behind is inside :func:`undone`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_asked = False
_changed = threading.Condition()
_blocks: dict[object, Callable[[], object] | None] = {}
"""What each open block must undo; None while it is doing so."""


def ask() -> None:
    """Have every thread stop. Safe to call from a signal handler: takes no lock."""
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
def undone(undo: Callable[[], object]) -> Iterator[None]:
    """Call `undo` once at the end of the block, however it ends, or before the process is stopped within it.

    In the latter case another thread calls it. Any thread but the main one, which tidies up, gets a KeyboardInterrupt
    instead of a block when we are stopping.
    """
    block = object()
    with _changed:
        if threading.current_thread() is not threading.main_thread():
            check()
        _blocks[block] = undo
    try:
        yield
    finally:
        _undo(block)


def undo_all(within_s: float) -> None:
    """Give open blocks that many seconds to end by themselves; then undo for those that have not."""
    with _changed:
        _changed.wait_for(lambda: not _blocks, within_s)
        left = [*_blocks]
    for block in left:
        _undo(block)


def _undo(block: object) -> None:
    with _changed:
        undo = _blocks.get(block)
        if undo is None:  # done by another thread, or about to be
            return
        _blocks[block] = None
    try:
        with contextlib.suppress(OSError):
            undo()
    finally:
        with _changed:
            del _blocks[block]
            _changed.notify_all()
