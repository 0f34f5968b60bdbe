"""Gives native code addresses that don't depend on the process: QNN's compiler writes some of them into binaries.

Linux chooses at random where in the address space a process begins to map memory, and goes down from there. What is
free above an address of our choice is reserved here, so that the next mapping lies right below it. This takes
addresses, no memory. docs/adr/0011 says what it is for.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.util
import platform
import runpy
import sys
from collections.abc import Callable, Mapping
from enum import IntEnum
from pathlib import Path

_FOR_THE_STACK = 1 << 27  # bytes at least, in which the kernel maps nothing by itself


def _stack_bytes() -> int | None:
    """For how far below it a main thread's stack may grow; None where nothing is to be reserved."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return None
    import resource

    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if stack == resource.RLIM_INFINITY or space != resource.RLIM_INFINITY:
        return None
    return max(stack, _FOR_THE_STACK)


_STACK_BYTES = _stack_bytes()
SETTLED = _STACK_BYTES is not None
"""Whether this is a host on which QNN's compiler runs, and whose address space is known here.

With `ulimit -s unlimited` Linux maps from the bottom up, and with `ulimit -v` reserved addresses would be taken from
what the process may have: nothing is done then.
"""

ENVIRONMENT: Mapping[str, str] = {
    "PYTHONHASHSEED": "0",  # set order must not reach the output
    "OPENBLAS_NUM_THREADS": "1",  # numpy's sums must not depend on the number of cores
    "ORT_DISABLE_TELEMETRY": "1",  # else onnxruntime starts a thread that calls home, from the compiler's heap
}
"""What a process needs from its start for equal bytes."""

# Position-independent programs and their heaps lie below 0x6600_0000_0000, libraries and stacks above
# 0x6fff_0000_0000, with the 28 random bits of most kernels and with the 32 that they can have (vm.mmap_rnd_bits).
_HIGHEST = 0x6F00_0000_0000
_APART = 1 << 37  # addresses for what is mapped between two milestones; SmolLM2's compile takes 5 GB
_PRIVATE, _ANONYMOUS, _NO_RESERVE, _NO_REPLACE = 0x2, 0x20, 0x4000, 0x100000  # of MAP_* in <sys/mman.h>
_LIBRARIES = ("onnx", "onnxruntime", "tokenizers")
_EXTENSION = "capi/onnxruntime_pybind11_state*.so"


class Milestone(IntEnum):
    """Where a process on its way to a compile is, in this order; what is mapped next follows."""

    LIBRARIES = 0
    HEAP = 1
    PROVIDER = 2
    COMPILE = 3


def settle(milestone: Milestone) -> None:
    """From here on, map memory below an address that depends on the milestone alone.

    Does nothing on other hosts, and leaves out what the system refuses: bytes may then differ, which is all.
    """
    if _STACK_BYTES is None:
        return
    with contextlib.suppress(OSError, ValueError):  # no /proc, or another one
        for begin, end in _free(_HIGHEST - milestone * _APART, _STACK_BYTES):
            _mmap()(begin, end - begin, 0, _PRIVATE | _ANONYMOUS | _NO_RESERVE | _NO_REPLACE, -1, 0)


def _free(lowest: int, stack_bytes: int) -> list[tuple[int, int]]:
    """What is free from an address up to the stack, as begins and ends; nothing where no stack is to be seen."""
    found = []
    with open("/proc/self/maps", encoding="ascii", errors="replace") as file:
        for line in file:
            begin, end = (int(number, 16) for number in line.split(" ", 1)[0].split("-"))
            is_stack = "[stack]" in line
            until = begin - stack_bytes if is_stack else begin
            if until > lowest:
                found.append((lowest, until))
            if is_stack:
                return found
            lowest = max(lowest, end)
    return []


@functools.cache
def _mmap() -> Callable[..., int]:
    function = ctypes.CDLL(None).mmap
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    return function


def settle_libraries() -> None:
    """Load what a compile needs, in one order and at addresses that depend on nothing. To be called before any import.

    What can't be loaded is left out: who needs it meets the same error, and can say so.
    """
    if not SETTLED:
        return
    settle(Milestone.LIBRARIES)
    with contextlib.suppress(Exception):
        found = importlib.util.find_spec("onnxruntime")
        for folder in (found and found.submodule_search_locations) or ():
            for path in Path(folder).glob(_EXTENSION):
                ctypes.CDLL(str(path))
    for name in _LIBRARIES:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def main() -> None:
    """`python -m pipeline.processes.addresses MODULE ARGUMENT...`: run a module as a program that may compile."""
    del sys.argv[0]
    settle_libraries()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
