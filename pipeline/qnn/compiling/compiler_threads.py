"""The threads that QNN's compiler is prepared and run in, with heaps at addresses that don't depend on the process.

Where the compiler lays out a small constant of 16 bits for HTP, it reads past the end of a block of memory
(`extract_tile_vmemu_u16`, called when constants are folded; valgrind, QNN EP 2.7, Linux x86_64) and writes up to 126
bytes of what lies there into the binary: pieces of other objects, with their addresses. Nothing that the chip computes
depends on them; the binary's digest does. docs/adr/0011 has the figures.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import NamedTuple, ParamSpec, TypeVar

import onnxruntime_qnn

from pipeline.processes.addresses import SETTLED, Milestone, settle
from pipeline.processes.quiet_thread import QuietThread, allocator, pools_mapped, take_own_heap
from pipeline.qnn.libraries import sdk_library
from pipeline.qnn.session import check_installed, devices

_ARENA_MAX = -8
"""glibc's M_ARENA_MAX (mallopt(3)): how many heaps, which it calls arenas, it makes for threads."""
_SPARE = 24  # the compiler starts 12 threads; an arena takes a few pages until it is used
_HANDLERS, _BLOCK_BYTES = 32, 1056  # of a block of glibc's, which malloc(3) rounds up from 1040


_Given = ParamSpec("_Given")
_Answer = TypeVar("_Answer")


class Threads(NamedTuple):
    """The two threads of a process that compiles. Nothing else is done in them, so that their heaps stay alike."""

    compiling: QuietThread
    preparing: QuietThread

    def compile(self, function: Callable[_Given, _Answer], *given: _Given.args, **named: _Given.kwargs) -> _Answer:
        """What a function that has QNN compile answers, or raises: at the same addresses in every process."""
        with pools_mapped():
            settle(Milestone.COMPILE)
            return self.compiling.run(function, *given, **named)


@functools.cache
def compiler_threads() -> Threads:
    """The threads of this process, each with a heap of its own, with the compiler's libraries loaded.

    glibc gives a thread the heap of one that has ended, or else maps a new one. The threads that the compiler starts
    would map theirs whenever each gets its turn. So here are enough that have ended, and none when these two begin.

    Raises:
        CompileError: the EP can't be loaded here.
    """
    threads = Threads(QuietThread(), QuietThread())
    if not SETTLED:
        return threads
    check_installed()
    with contextlib.suppress(RuntimeError):  # the system gives no more threads: bytes may differ, which is all
        _take_heaps(threads)
    settle(Milestone.PROVIDER)  # by this thread: to find out what is free takes room on a heap
    threads.preparing.run(_load_compiler)
    return threads


def _take_heaps(threads: Threads) -> None:
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL("libc.so.6").mallopt(_ARENA_MAX, 2 * _SPARE)
    malloc = allocator()
    together = Barrier(_SPARE + 1)
    with ThreadPoolExecutor(_SPARE) as spare:
        try:
            for _ in range(_SPARE):
                spare.submit(_hold_a_heap, together, malloc)
            together.wait()
            settle(Milestone.HEAP)
            for thread in threads:
                thread.run(take_own_heap, malloc)
            together.wait()
        finally:
            together.abort()  # else those that were started wait for ever for one that could not be


def _hold_a_heap(together: Barrier, malloc: Callable[[int], int]) -> None:
    take_own_heap(malloc)
    together.wait()
    together.wait()


def _load_compiler() -> None:
    """Load what the compiler would: what that takes on a heap depends on what else is loaded."""
    devices()
    with contextlib.suppress(OSError):  # QNN can't load it either, and says so
        for path in (onnxruntime_qnn.get_qnn_htp_path(), sdk_library("QnnSystem")):
            ctypes.CDLL(str(path))
    _begin_exit_handlers()


def _begin_exit_handlers() -> None:
    """Have glibc begin a block of handlers of exit(3), which it would on the compiler's heap in one of 32 cases.

    Libraries that the compiler loads register handlers; how many others did so before depends on the process.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library, or a glibc older than 2.33
        libc = ctypes.CDLL("libc.so.6")
        libc.mallinfo2.restype = _MallocInfo
        for _ in range(_HANDLERS):
            before = libc.mallinfo2().used
            libc.__cxa_atexit(libc.free, None, None)  # free(NULL): nothing to do
            if libc.mallinfo2().used == before + _BLOCK_BYTES:
                return


class _MallocInfo(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in (*"abcdefg", "used", "free", "top"))
