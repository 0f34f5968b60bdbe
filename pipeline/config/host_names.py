"""The names by which a config says where a stage may run, and those that this host has."""

from __future__ import annotations

import difflib
import os
import re
import sys
import sysconfig
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pipeline.qnn import catalog

VARIABLE = "PIPELINE_HOST"
"""Further names of this host, separated by commas."""
X86_64, AARCH64 = "x86_64", "aarch64"
_SYSTEMS = ("linux", "windows")
_SAME = {
    "amd64": X86_64,
    "x64": X86_64,
    "x86-64": X86_64,
    "intel64": X86_64,
    "arm64": AARCH64,
    "armv8": AARCH64,
    "win": "windows",
    "win32": "windows",
    "win64": "windows",
}
_SLIP = 0.8
"""How like a name that hosts have by nature a word must be to be taken for a slip (difflib's ratio)."""
_NEAR = 8
"""So many are looked at for swapped letters."""
_SOC0 = Path("/sys/devices/soc0/machine")
# The kernel and Windows tell part numbers that the tables of SoCs don't have. X1P42100 and the like are another die.
# https://github.com/torvalds/linux/blob/master/drivers/soc/qcom/socinfo.c; names of processors as Windows shows them
_PARTS = {"x1e": "snapdragon-x-elite", "x1p64": "snapdragon-x-elite", "x1p66": "snapdragon-x-elite"}


@dataclass(frozen=True)
class Host:
    """The machine that this Python runs on: its names, and what rules by nature ask for."""

    arch: str
    """For which Python is made; emulated or not, that decides which compiler there is."""
    system: str
    soc: str | None
    """The SoC by its name in the catalogue, None where it can't be told or is none of Qualcomm's."""
    names: tuple[str, ...]

    @classmethod
    def of(cls, arch: str, system: str, soc: str | None, given: str = "") -> Host:
        """A host; `given` is what PIPELINE_HOST says. On ARM64, a SoC named there is believed."""
        own = given_names(given)
        if arch == AARCH64 and soc is None:
            soc = next((name for name in own if name in catalog.names()), None)
        by_nature = [arch, system, f"{system}-{arch}", *([soc] if soc else [])]
        return cls(arch, system, soc, tuple(dict.fromkeys((*by_nature, *own))))

    @classmethod
    def here(cls, environ: Mapping[str, str] = os.environ) -> Host:
        """This host."""
        return cls.of(*_nature(), environ.get(VARIABLE, ""))


def given_names(text: str) -> list[str]:
    """The names in PIPELINE_HOST: separated by commas, or by blanks where that makes no SoC's name of several words."""
    found: list[str] = []
    for part in re.split("[,;]", text):
        found += [part] if catalog.find(part) else part.split()
    return [*dict.fromkeys(canonical(name) for name in found if name.strip())]


def by_nature() -> Collection[str]:
    """The names that hosts have without being given them."""
    return _by_nature()


def canonical(name: str) -> str:
    """The one spelling of a host's name: lower case, and a SoC by its name in the catalogue."""
    soc = catalog.find(name)
    return soc.name if soc else name.strip().lower()


def meant(name: str) -> str:
    """The name by nature that a name is another word or a slip for; empty where it is one itself, or one of its own.

    A name that only begins with one, as `linux-2` does, is one of its own.
    """
    if name in _by_nature():
        return ""
    if name in _SAME:
        return _SAME[name]
    parts = re.fullmatch(r"([a-z]+[0-9]*)[-_ ](.+)|(.+)[-_ ]([a-z]+[0-9]*)", name)
    if parts:
        first, second = (parts[1], parts[2]) if parts[1] else (parts[4], parts[3])
        system, arch = (_SAME.get(part, part) for part in (first, second))
        if f"{system}-{arch}" in _by_nature():
            return f"{system}-{arch}"
        if f"{arch}-{system}" in _by_nature():
            return f"{arch}-{system}"
    if any(re.match(rf"{re.escape(known)}[-._ 0-9]", name) for known in _by_nature()):
        return ""
    return like(name, _by_nature())


def like(name: str, names: Collection[str]) -> str:
    """The one of `names` that a word is a slip for, or nothing: one with letters swapped before others as near."""
    near = difflib.get_close_matches(name, names, n=_NEAR, cutoff=_SLIP)
    swapped = (other for other in near if sorted(other) == sorted(name))
    return next(swapped, near[0] if near else "")


@cache
def _by_nature() -> tuple[str, ...]:
    archs = (X86_64, AARCH64)
    both = [f"{system}-{arch}" for system in _SYSTEMS for arch in archs]
    return (*archs, *_SYSTEMS, *both, *catalog.names())


@cache
def _nature() -> tuple[str, str, str | None]:
    """Architecture, system and SoC of this host, as far as they can be told."""
    # `linux-x86_64`, `win-amd64`, `win-arm64`: of Python, where platform.machine() tells of the machine
    arch = sysconfig.get_platform().rpartition("-")[2]
    arch = _SAME.get(arch, arch)
    system = {"win32": "windows"}.get(sys.platform, sys.platform)
    return arch, system, soc_called(_processor()) if arch == AARCH64 else None


def _processor() -> str:
    """What the system calls the SoC; nothing where it doesn't say."""
    if sys.platform == "win32":
        import platform
        import winreg

        try:
            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, r"HARDWARE\DESCRIPTION\System\CentralProcessor\0") as key:
                return str(winreg.QueryValueEx(key, "ProcessorNameString")[0])
        except OSError:
            return platform.processor()
    else:  # what follows a return is unreachable to mypy on that system
        try:
            return _SOC0.read_text("utf-8", "replace").strip()
        except OSError:
            return ""


def soc_called(text: str) -> str | None:
    """The SoC that a system calls `SM8650` or `Snapdragon(R) X Elite - X1E80100 - Qualcomm(R) Oryon(TM) CPU`.

    Part numbers alone count: one marketing name stands for several dies.
    """
    for word in re.findall(r"[A-Za-z]+[0-9][A-Za-z0-9]*", re.sub(r"[-_]", "", text) if " " not in text else text):
        if soc := catalog.find(word):
            return soc.name
        for beginning, name in _PARTS.items():
            if word.lower().startswith(beginning):
                return name
    return None
