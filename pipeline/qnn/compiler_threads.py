"""The threads that QNN's compiler is prepared and run in, whose heaps lie at the same addresses in every process.

Where the compiler lays out a small constant of 16 bits for HTP, it reads past the end of a block of memory
(`extract_tile_vmemu_u16`, called when constants are folded; valgrind, QNN EP 2.7, Linux x86_64) and writes up to 126
bytes of what lies there into the binary: pieces of other objects, with their addresses. Nothing that the chip computes
depends on them; the binary's digest does. docs/adr/0011 has the figures.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import NamedTuple

import onnxruntime_qnn

from pipeline.processes.addresses import SETTLED, Place, settle
from pipeline.qnn.libraries import sdk_library

_ARENA_MAX = -8
"""glibc's M_ARENA_MAX (mallopt(3)): how many heaps, which it calls arenas, it makes for threads."""
_SPARE = 24  # the compiler starts 12 threads; an arena takes a few pages until it is used
_FROM_THE_HEAP = 1 << 12  # bytes; Python keeps up to 512 in heaps of its own


class Threads(NamedTuple):
    """The two threads of a process that compiles. Nothing else is done in them, so that their heaps stay alike."""

    preparing: ThreadPoolExecutor
    compiling: ThreadPoolExecutor


@functools.cache
def compiler_threads() -> Threads:
    """The threads of this process, each with a heap of its own.

    glibc gives a thread the heap of one that has ended, or else maps a new one. The threads that the compiler starts
    would map theirs whenever each gets its turn. So here are enough that have ended, and none when these two begin.
    """
    threads = Threads(ThreadPoolExecutor(1), ThreadPoolExecutor(1))
    if not SETTLED:
        return threads
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL("libc.so.6").mallopt(_ARENA_MAX, 2 * _SPARE)
    together = Barrier(_SPARE + 1)
    with ThreadPoolExecutor(_SPARE) as spare:
        for _ in range(_SPARE):
            spare.submit(_hold_a_heap, together)
        together.wait()
        settle(Place.HEAP)
        for thread in threads:
            thread.submit(_take_a_heap).result()
        together.wait()
    settle(Place.PROVIDER)  # by this thread: to find out what is free takes room on a heap
    return threads


def load_compiler() -> None:
    """Load QNN's libraries, which the compiler would: what that takes on a heap depends on what else is loaded."""
    if SETTLED:
        for path in (onnxruntime_qnn.get_qnn_htp_path(), sdk_library("QnnSystem")):
            ctypes.CDLL(str(path))


def _hold_a_heap(together: Barrier) -> None:
    _take_a_heap()
    together.wait()
    together.wait()


def _take_a_heap() -> None:
    bytearray(_FROM_THE_HEAP)
