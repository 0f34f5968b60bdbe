"""Keeps what a compile holds in memory small: what was freed or read goes back to the system at once.

QNN's compiler holds several copies of a model's weights, and at the end, for a moment, as many of the binary. Next to
these our own share is what can be had, and what glibc keeps of what was freed. Of SmolLM2's two contexts (a binary of
210 MB) the process held 2.82 GB without this.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from numpy.typing import NDArray

_MMAP_THRESHOLD = -3
"""glibc's M_MMAP_THRESHOLD (mallopt(3)): from this size on, memory is mapped, and unmapped when it is freed."""
_FROM_BYTES, _FROM_BYTES_OF_SEVERAL = 1 << 20, 1 << 14
"""Left alone, glibc raises it to 32 MiB as it sees large blocks freed, and keeps those below in its heaps. Where
several graphs are in one process, less counts: a matrix of a small language model has 0.1 to 0.9 MB in 8 bits. Mapping
takes time, a tenth of a compile."""
_EVERY_S = 1.0


def return_large_blocks(*, several: bool = False) -> None:
    """Have glibc return large blocks when they are freed, from now on; no other C library is changed.

    With `several` graphs to compile in this process, smaller ones, too.
    """
    with contextlib.suppress(OSError, AttributeError):  # no such library, or another one
        ctypes.CDLL("libc.so.6").mallopt(_MMAP_THRESHOLD, _FROM_BYTES_OF_SEVERAL if several else _FROM_BYTES)


def return_freed() -> None:
    """Have glibc return all that is free now; no other C library is asked.

    To be called between compiles, not during one: it changes where what comes next will lie.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


@contextlib.contextmanager
def unread(arrays: Sequence[NDArray[Any]]) -> Iterator[None]:
    """While it lasts, pages of files that are mapped as `arrays` don't stay in memory once they were read.

    The compiler copies weights when it takes a graph in, and looks at them no more. Whoever does reads them anew.
    """
    maps = [found for array in arrays if isinstance(found := getattr(array, "_mmap", None), mmap.mmap)]
    if not maps or not hasattr(mmap, "MADV_DONTNEED"):
        yield
        return
    done = threading.Event()

    def drop() -> None:
        while not done.wait(_EVERY_S):
            for each in maps:
                each.madvise(mmap.MADV_DONTNEED)

    thread = threading.Thread(target=drop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
