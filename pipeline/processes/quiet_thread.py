"""A thread whose heap holds nothing but what it was told to do: QNN's compiler needs it, see docs/adr/0011."""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import gc
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

_Given = ParamSpec("_Given")
_Answer = TypeVar("_Answer")

_FROM_A_HEAP = 1 << 13  # bytes: more than Python keeps in pools of its own, and than glibc keeps of what was freed
_HEAP_BITS = 26  # heaps of threads begin at multiples of 64 MB (HEAP_MAX_SIZE of glibc's malloc, on 64 bits)
_KEPT_SIZES, _KEPT_OF_EACH = range(24, 1033, 16), 7  # what glibc keeps of what a thread freed, whosever heap it is of
_POOLED, _MAPPED_POOLS = 512, 2 << 20  # bytes: Python's largest pooled object; twice what it maps at once for pools


class QuietThread:
    """A thread in which nothing is allocated, and nothing freed, but by what it is told to do.

    One of :mod:`threading` shares locks with the thread that starts it. Which of the two lets go of one last, and keeps
    its memory for what it allocates next, depends on which of them runs first (docs/adr/0011 says how often).
    """

    def __init__(self) -> None:
        """It starts when it is first needed, and ends with the process."""
        self._turn = _thread.allocate_lock()
        self._todo: Callable[[], None] | None = None
        self._forget()

    def _forget(self) -> None:
        """Leave the thread that was started to itself: the next call starts another one."""
        self._wanted, self._done = _thread.allocate_lock(), _thread.allocate_lock()
        self._wanted.acquire()
        self._done.acquire()
        self._started = False

    def run(self, function: Callable[_Given, _Answer], *given: _Given.args, **named: _Given.kwargs) -> _Answer:
        """What a function answers there, or raises. Who calls while another call lasts waits for it.

        Raises:
            RuntimeError: the system gives no more threads.
        """
        answers: list[_Answer] = []
        errors: list[BaseException] = []

        def answer() -> None:
            try:
                answers.append(function(*given, **named))
            except BaseException as error:
                errors.append(error)

        with self._turn:
            if not self._started:
                _thread.start_new_thread(self._serve, (self._wanted, self._done))
                self._started = True
            self._todo = answer
            try:
                with _no_collection():
                    self._wanted.release()
                    self._done.acquire()
            except BaseException:  # Ctrl-C: the thread is at it still
                self._forget()
                raise
            self._todo = None  # in this thread, which may free what was given; nothing of it is kept for longer
        if errors:
            raise errors.pop()
        if not answers:
            raise MemoryError(f"no memory for the answer of {function}")
        return answers.pop()

    def _serve(self, wanted: _thread.LockType, done: _thread.LockType) -> None:
        while True:
            wanted.acquire()
            assert self._todo
            with contextlib.suppress(MemoryError):  # even the error could not be noted
                self._todo()
            done.release()


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Meanwhile Python looks for no garbage: the thread in which it does keeps what it frees, other threads' too."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def allocator() -> Callable[[int], int]:
    """malloc(3): takes bytes, answers an address. To be made in another thread than uses it: making it allocates."""
    malloc = ctypes.CDLL(None).malloc
    malloc.argtypes, malloc.restype = [ctypes.c_size_t], ctypes.c_size_t
    return malloc


def take_own_heap(malloc: Callable[[int], int]) -> None:
    """Make this thread's heap, and use up the freed blocks of other heaps that glibc would give to this thread first.

    glibc keeps a few blocks that a thread freed, and gives them to the same thread again. One is of the thread that
    started it: Python hands its arguments over in it.
    """
    heap = malloc(_FROM_A_HEAP) >> _HEAP_BITS
    for size in _KEPT_SIZES:
        for _ in range(_KEPT_OF_EACH + 1):
            if malloc(size) >> _HEAP_BITS == heap:
                break


@contextlib.contextmanager
def pools_mapped() -> Iterator[None]:
    """Meanwhile Python has memory for small objects, so that calls that make few of them map none."""
    last = [bytes(_POOLED - 64) for _ in range(_MAPPED_POOLS // _POOLED)][-1:]  # the others are free, next to it
    yield
    del last
