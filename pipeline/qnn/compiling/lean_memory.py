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

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""glibc's M_TRIM_THRESHOLD, M_TOP_PAD and M_MMAP_THRESHOLD (mallopt(3)): what may be free at a heap's end before it is
returned, by how much more than is needed a heap grows, and from which size on memory is mapped, and unmapped again.
"""
_FROM_BYTES, _FROM_BYTES_OF_SEVERAL = 1 << 20, 1 << 14
"""Where several graphs are in one process, less counts: a matrix of a small language model has 0.1 to 0.9 MB in 8 bits.
"""
_SMALL_BYTES = 64 << 20
"""Up to here weights are few enough to keep what is freed: MiniLM's 20 MB more spare a twelfth of a compile."""
_KEPT_FROM_BYTES, _KEPT_FREE, _GROWN_BY = 32 << 20, 64 << 20, 1 << 20
"""glibc comes to the first two by itself, as it sees large blocks freed. Set, they are the same in every process."""
_EVERY_S = 1.0


def return_large_blocks(weights_bytes: int, *, several: bool = False) -> None:
    """Have glibc return large blocks when they are freed, from now on; no other C library is changed.

    With `several` graphs to compile in this process, smaller ones, too. Of a small model, alone, nothing is returned:
    to map memory, and to have it cleared, takes time.
    """
    with contextlib.suppress(OSError, AttributeError):  # no such library, or another one
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        if several or weights_bytes > _SMALL_BYTES:
            mallopt(_MMAP_THRESHOLD, _FROM_BYTES_OF_SEVERAL if several else _FROM_BYTES)
            return
        for option, size in ((_MMAP_THRESHOLD, _KEPT_FROM_BYTES), (_TRIM_THRESHOLD, _KEPT_FREE), (_TOP_PAD, _GROWN_BY)):
            mallopt(option, size)


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
