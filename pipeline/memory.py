"""Bytes of memory: how many a build may use, and how many this process used at most."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from pipeline.errors import ConfigError

VARIABLE = "PIPELINE_MEMORY"
_SHARE = 0.8  # of what is available; the rest is for the build itself, the page cache and estimates that are too low
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_CGROUP = Path("/sys/fs/cgroup")


def budget_bytes(environ: Mapping[str, str]) -> int:
    """What all running steps may use together: as PIPELINE_MEMORY says (`12G`, `800M`), else 80 % of what is free now.

    Raises:
        ConfigError: the variable is no size.
    """
    text = environ.get(VARIABLE, "").strip()
    if not text:
        return int(_available_bytes() * _SHARE)
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?", text, re.IGNORECASE)
    if match is None or float(match[1]) == 0:
        raise ConfigError(
            f"{VARIABLE}={text} is not an amount of memory",
            where="environment",
            remedy=f"write a number of bytes, or one with K, M or G, such as {VARIABLE}=12G",
        )
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _available_bytes() -> int:
    """Memory that could be used without swapping; within a container, what its limit leaves."""
    if sys.platform == "win32":
        return _windows_available_bytes()
    try:
        words = Path("/proc/meminfo").read_text("ascii").split()
        available = int(words[words.index("MemAvailable:") + 1]) << 10
    except (OSError, ValueError):
        return sys.maxsize  # unknown: let the number of cores be the only limit
    try:  # cgroup v2; without a limit the file says `max`
        limit = int(_CGROUP.joinpath("memory.max").read_text("ascii"))
        used = int(_CGROUP.joinpath("memory.current").read_text("ascii"))
    except (OSError, ValueError):
        return available
    return max(min(available, limit - used), 1)


def peak_bytes() -> int:
    """The most that this process had resident at once, plus the same of the largest of its children that ended.

    Never too low, but Linux says of a child that it had at least as much as its parent had when it started it.
    """
    if sys.platform == "win32":
        return _windows_peak_bytes()
    import resource

    kilobytes = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(kilobytes) * (1 if sys.platform == "darwin" else 1 << 10)


if sys.platform == "win32":
    import ctypes

    class _MemoryStatus(ctypes.Structure):
        """MEMORYSTATUSEX of the Windows API."""

        _fields_ = [
            ("length", ctypes.c_uint32),
            ("load", ctypes.c_uint32),
            ("total_physical", ctypes.c_uint64),
            ("available_physical", ctypes.c_uint64),
            ("others", ctypes.c_uint64 * 5),
        ]

    class _ProcessMemory(ctypes.Structure):
        """PROCESS_MEMORY_COUNTERS of the Windows API."""

        _fields_ = [
            ("size", ctypes.c_uint32),
            ("page_faults", ctypes.c_uint32),
            ("peak_working_set", ctypes.c_size_t),
            ("others", ctypes.c_size_t * 7),
        ]

    def _windows_available_bytes() -> int:
        status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
        if not ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
            return sys.maxsize
        return int(status.available_physical)

    def _windows_peak_bytes() -> int:
        counters = _ProcessMemory(size=ctypes.sizeof(_ProcessMemory))
        kernel = ctypes.windll.kernel32
        kernel.GetCurrentProcess.restype = ctypes.c_void_p
        process = ctypes.c_void_p(kernel.GetCurrentProcess())
        if not kernel.K32GetProcessMemoryInfo(process, ctypes.byref(counters), counters.size):
            return 0
        return int(counters.peak_working_set)
