"""Finds which processor a machine really has. An emulated process is usually told of the one that it is made for."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
import sysconfig
from pathlib import Path

from pipeline.upkeep.doctor.elf import read_machine

_SAME = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64", "win32": "x86", "i386": "x86", "i686": "x86"}
# IMAGE_FILE_MACHINE_* of the Windows SDK: https://learn.microsoft.com/windows/win32/sysinfo/image-file-machine-constants
_WINDOWS = {0x8664: "x86_64", 0xAA64: "aarch64", 0x014C: "x86", 0x01C4: "arm"}
_KERNEL_ARCH = Path("/proc/sys/kernel/arch")


def canonical(machine: str) -> str:
    """One name for each architecture: `AMD64` is `x86_64`, `arm64` is `aarch64`."""
    return _SAME.get(machine.lower(), machine.lower())


def host_machine() -> str:
    """The machine's real architecture, even if this process is emulated."""
    if sys.platform == "win32":
        return _windows_machine()
    elif sys.platform == "darwin":  # noqa: RET505  # what follows a return is unreachable to mypy on that system
        return "aarch64" if _translated_by_rosetta() else canonical(platform.machine())
    else:
        try:  # since Linux 6.1; qemu's user mode falsifies uname, and not this
            return canonical(_KERNEL_ARCH.read_text("ascii").strip())
        except (OSError, ValueError):
            return canonical(platform.machine())


def python_machine() -> str:
    """The architecture that this Python was made for."""
    if sys.platform not in ("win32", "darwin"):
        found = read_machine(Path(sys.executable).resolve())
        if found:
            return found
    # `win-amd64`, `win-arm64`, `macosx-11.0-arm64`; platform.machine() tells of the machine instead, on Windows.
    machine = canonical(sysconfig.get_platform().rpartition("-")[2])
    return machine if struct.calcsize("P") == 8 else f"{machine} with 32 bits"


def _windows_machine() -> str:
    """The answer of IsWow64Process2, right in emulated processes, too; if it fails, that of the environment."""
    if sys.platform == "win32":
        try:
            kernel = ctypes.WinDLL("kernel32", use_last_error=True)
            kernel.GetCurrentProcess.restype = ctypes.c_void_p
            process, native = ctypes.c_ushort(), ctypes.c_ushort()
            handle = ctypes.c_void_p(kernel.GetCurrentProcess())
            if kernel.IsWow64Process2(handle, ctypes.byref(process), ctypes.byref(native)):
                return _WINDOWS.get(native.value, f"machine 0x{native.value:04x}")
        except (OSError, AttributeError):  # before Windows 10 1709 there is no such function
            pass
    return environment_machine(os.environ)


def environment_machine(environ: os._Environ[str] | dict[str, str]) -> str:
    """The machine by environment variables: Windows adds one for it if the process has another architecture."""
    given = environ.get("PROCESSOR_ARCHITEW6432") or environ.get("PROCESSOR_ARCHITECTURE") or platform.machine()
    if "ARMV8" in environ.get("PROCESSOR_IDENTIFIER", "").upper():  # says so to x64 processes too
        return "aarch64"
    return canonical(given)


def _translated_by_rosetta() -> bool:
    value, size = ctypes.c_int(0), ctypes.c_size_t(4)
    try:
        found = ctypes.CDLL(None).sysctlbyname(
            b"sysctl.proc_translated", ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)
        )
    except (OSError, AttributeError):
        return False
    return bool(found == 0 and value.value == 1)
