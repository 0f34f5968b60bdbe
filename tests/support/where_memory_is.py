"""A program: where a process that may compile maps memory and finds its compiler's heap, in hexadecimal."""

from __future__ import annotations

import ctypes
import mmap

from pipeline.processes.addresses import Place, settle
from pipeline.qnn.compiler_threads import compiler_threads


def _allocated() -> int:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    return int(libc.malloc(ctypes.c_size_t(5000)))


def _mapped() -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(mmap.mmap(-1, 1 << 20)))


if __name__ == "__main__":
    compiling = compiler_threads().compiling
    settle(Place.COMPILE)
    print(*(hex(compiling.submit(where).result()) for where in (_allocated, _mapped)))
