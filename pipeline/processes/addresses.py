"""Gives native code the same addresses in every process: QNN's compiler lets them into what it writes.

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
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from pathlib import Path

SETTLED = sys.platform == "linux" and platform.machine() == "x86_64"
"""Whether this is a host on which QNN's compiler runs, and whose address space is known here."""

ENVIRONMENT: Mapping[str, str] = {
    "PYTHONHASHSEED": "0",  # set order must not reach the output
    "OPENBLAS_NUM_THREADS": "1",  # numpy's sums must not depend on the number of cores
    "ORT_DISABLE_TELEMETRY": "1",  # else onnxruntime starts a thread that calls home, from the compiler's heap
}
"""What a process needs from its start for equal bytes."""

# Position-independent programs and their heaps lie below 0x6600_0000_0000, libraries and stacks above
# 0x6fff_0000_0000, with the 28 random bits of most kernels and with the 32 that they can have (vm.mmap_rnd_bits).
_HIGHEST = 0x6F00_0000_0000
_APART = 1 << 37  # addresses for what is mapped between two places; SmolLM2's compile takes 5 GB
_FOR_THE_STACK = 1 << 27  # which grows; the kernel maps nothing there by itself
_PRIVATE, _ANONYMOUS, _NO_RESERVE, _NO_REPLACE = 0x2, 0x20, 0x4000, 0x100000  # of MAP_* in <sys/mman.h>
_LIBRARIES = ("onnx", "onnxruntime", "tokenizers")
_EXTENSION = "capi/onnxruntime_pybind11_state*.so"


class Place(IntEnum):
    """Where a process on its way to a compile is, in this order; what is mapped next follows."""

    LIBRARIES = 0
    HEAP = 1
    PROVIDER = 2
    COMPILE = 3


def settle(place: Place) -> None:
    """From here on, map memory below an address that is the same in every process that is at this place.

    Does nothing on other hosts, and leaves out what the system refuses: bytes may then differ, which is all.
    """
    if not SETTLED:
        return
    lowest = _HIGHEST - place * _APART
    for begin, end in list(_free(lowest)):
        _mmap()(begin, end - begin, 0, _PRIVATE | _ANONYMOUS | _NO_RESERVE | _NO_REPLACE, -1, 0)


def _free(lowest: int) -> Iterator[tuple[int, int]]:
    """What is free from an address up to the stack, as begins and ends."""
    with open("/proc/self/maps", encoding="ascii", errors="replace") as file:  # no file: no Path
        for line in file:
            begin, end = (int(number, 16) for number in line.split(" ", 1)[0].split("-"))
            until = begin - _FOR_THE_STACK if "[stack]" in line else begin
            if until > lowest:
                yield lowest, until
            if "[stack]" in line:
                return
            lowest = max(lowest, end)


@functools.cache
def _mmap() -> Callable[..., int]:
    function = ctypes.CDLL(None).mmap
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    return function


def settle_libraries() -> None:
    """Load onnxruntime's library, at the same addresses in every process. To be called before it is imported."""
    if not SETTLED:
        return
    found = importlib.util.find_spec("onnxruntime")
    settle(Place.LIBRARIES)
    for folder in (found and found.submodule_search_locations) or ():
        for path in Path(folder).glob(_EXTENSION):
            ctypes.CDLL(str(path))
    for name in _LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def main() -> None:
    """`python -m pipeline.processes.addresses MODULE ARGUMENT...`: run a module as a program that may compile."""
    del sys.argv[0]
    settle_libraries()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
