"""Asks a host about its power: whether it is on mains or battery, and what governs its clocks."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

MAINS, BATTERY, UNKNOWN = "mains", "battery", "unknown"
_SUPPLIES = Path("/sys/class/power_supply")
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def source() -> str:
    """The power supply in use: `mains`, `battery`, or `unknown` if the system does not tell."""
    if sys.platform == "win32":
        return _windows_source()
    if not _SUPPLIES.is_dir():
        return UNKNOWN
    supplies = [(_read(each / "type"), _read(each / "online")) for each in sorted(_SUPPLIES.iterdir())]
    online = [plugged for kind, plugged in supplies if kind != "Battery" and plugged]
    if "1" in online:
        return MAINS
    return BATTERY if online or any(kind == "Battery" for kind, _ in supplies) else UNKNOWN


def plan() -> str:
    """The frequency governor of Linux, or the name of the power scheme of Windows; "" if the system does not tell."""
    if sys.platform == "win32":
        return _windows_plan()
    return _read(_GOVERNOR)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace").strip()
    except OSError:
        return ""


if sys.platform == "win32":

    class _PowerStatus(ctypes.Structure):
        """`SYSTEM_POWER_STATUS` of winbase.h; `battery` stands for three fields of a byte each."""

        _fields_ = (
            ("plugged", ctypes.c_ubyte),
            ("battery", ctypes.c_ubyte * 3),
            ("lifetime", ctypes.c_uint32),
            ("full_lifetime", ctypes.c_uint32),
        )

    def _windows_source() -> str:
        status = _PowerStatus()
        if not ctypes.windll.kernel32.GetSystemPowerStatus(ctypes.byref(status)):
            return UNKNOWN
        return {0: BATTERY, 1: MAINS}.get(status.plugged, UNKNOWN)

    def _windows_plan() -> str:
        try:
            told = subprocess.run(["powercfg", "/getactivescheme"], capture_output=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        _, _, name = told.stdout.decode(errors="replace").strip().partition("(")
        return name.rstrip(") *")
