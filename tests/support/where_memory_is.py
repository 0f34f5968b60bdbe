"""A program: where a process that may compile maps memory and finds its compiler's heap, in hexadecimal.

With `fork` as its argument, where a fork of it does, which has memory of its own before it comes to that.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys

from pipeline.qnn.compiling.compiler_threads import compiler_threads


def _found() -> list[str]:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    allocated = [libc.malloc(ctypes.c_size_t(size)) for size in (16, 24, 40, 1000, 5000)]
    mapped = ctypes.addressof(ctypes.c_char.from_buffer(mmap.mmap(-1, 1 << 20)))
    return [hex(address) for address in (*allocated, mapped)]


def main() -> None:
    if sys.argv[1:] == ["fork"] and sys.platform == "linux":
        kept = [os.urandom(997) for _ in range(20_000)]
        child = os.fork()
        if child:
            assert kept
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(*compiler_threads().compile(_found))


if __name__ == "__main__":
    main()
