"""A program: where a process that may compile maps memory and finds its compiler's heap, in hexadecimal.

With `fork` as its argument, where a fork of it does, which has memory of its own before it comes to that.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys

from pipeline.processes.addresses import Milestone, settle
from pipeline.qnn.compiler_threads import compiler_threads


def _allocated() -> int:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    return int(libc.malloc(ctypes.c_size_t(5000)))


def _mapped() -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(mmap.mmap(-1, 1 << 20)))


def main() -> None:
    if sys.argv[1:] == ["fork"] and sys.platform == "linux":
        kept = [os.urandom(997) for _ in range(20_000)]
        child = os.fork()
        if child:
            assert kept
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    compiling = compiler_threads().compiling
    settle(Milestone.COMPILE)
    print(*(hex(compiling.submit(where).result()) for where in (_allocated, _mapped)))


if __name__ == "__main__":
    main()
