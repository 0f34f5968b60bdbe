"""The names by which a config says where a stage may run, and those that this host has."""

from __future__ import annotations

import difflib
import os
import re
import sys
import sysconfig
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path

from pipeline.frozen import dataclass
from pipeline.qnn import catalog

VARIABLE = "PIPELINE_HOST"
"""Further names of this host, separated by commas."""
X86_64, AARCH64 = "x86_64", "aarch64"
_ARCHS, _SYSTEMS = (X86_64, AARCH64), ("linux", "windows")
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
"""A word that is at least this similar to a name, by difflib's ratio, counts as a slip for it."""
_NEAR = 8
"""How many similar names are checked for swapped letters."""
_SOC0 = Path("/sys/devices/soc0/machine")
# The kernel and Windows give part numbers that the catalogue doesn't have. X1P42100 and the like are another die.
# https://github.com/torvalds/linux/blob/master/drivers/soc/qcom/socinfo.c; names of processors as Windows shows them
_PARTS = {"x1e": "snapdragon-x-elite", "x1p64": "snapdragon-x-elite", "x1p66": "snapdragon-x-elite"}


@dataclass(frozen=True)
class Host:
    """A machine that builds: its names, and what decides which compiler and emulator it has."""

    arch: str
    """The architecture that Python is made for. It decides which compiler there is, even if Python is emulated."""
    system: str
    soc: str | None
    """The SoC by its name in the catalogue; None if the system does not say which, or it is not Qualcomm's."""
    names: tuple[str, ...]

    @classmethod
    def of(cls, arch: str, system: str, soc: str | None, given: str = "") -> Host:
        """A host with these properties; `given` is the text of PIPELINE_HOST. On ARM64, a SoC in it is the host's."""
        own = given_names(given)
        if arch == AARCH64 and soc is None:
            soc = next((name for name in own if name in catalog.names()), None)
        by_nature = [arch, system, f"{system}-{arch}", *([soc] if soc else [])]
        return cls(arch, system, soc, tuple(dict.fromkeys((*by_nature, *own))))

    @classmethod
    def here(cls, environ: Mapping[str, str] = os.environ) -> Host:
        """The host that this process runs on."""
        return cls.of(*_nature(), environ.get(VARIABLE, ""))


def given_names(text: str) -> list[str]:
    """The names in PIPELINE_HOST. Commas separate them, and blanks that are not part of a SoC's name."""
    found: list[str] = []
    for part in re.split("[,;]", text):
        found += [part] if catalog.find(part) else part.split()
    return [*dict.fromkeys(canonical(name) for name in found if name.strip())]


@cache
def by_nature() -> tuple[str, ...]:
    """The names that hosts have by nature, without PIPELINE_HOST: architectures, systems, pairs of these, and SoCs."""
    pairs = [f"{system}-{arch}" for system in _SYSTEMS for arch in _ARCHS]
    return (*_ARCHS, *_SYSTEMS, *pairs, *catalog.names())


def canonical(name: str) -> str:
    """The one spelling of a host's name: lower case, and a SoC by its name in the catalogue."""
    soc = catalog.find(name)
    return soc.name if soc else name.strip().lower()


def meant(name: str) -> str:
    """The name by nature that a user means by another spelling of it or by a slip; "" for all other names.

    A name that only begins with one by nature, such as `linux-2`, is a name of the user's own.
    """
    if name in by_nature():
        return ""
    if name in _spellings():
        return _spellings()[name]
    if any(re.match(rf"{re.escape(known)}[-._ 0-9]", name) for known in by_nature()):
        return ""
    return like(name, by_nature())


@cache
def _spellings() -> dict[str, str]:
    """Other spellings of names by nature: `arm64` for aarch64, `win-x64` and `x86_64-windows` for windows-x86_64."""
    words = _SAME | {name: name for name in (*_ARCHS, *_SYSTEMS)}
    pairs = [(one, other) for one in words for other in words if f"{words[one]}-{words[other]}" in by_nature()]
    found = dict(_SAME)
    for system, arch in pairs:
        for spelling in ((system, arch), (arch, system)):
            found |= {separator.join(spelling): f"{words[system]}-{words[arch]}" for separator in "-_ "}
    return found


def like(name: str, names: Collection[str]) -> str:
    """The one of `names` that a word is a slip for, swapped letters before other slips; "" if it is no slip."""
    near = difflib.get_close_matches(name, names, n=_NEAR, cutoff=_SLIP)
    swapped = (other for other in near if sorted(other) == sorted(name))
    return next(swapped, near[0] if near else "")


@cache
def _nature() -> tuple[str, str, str | None]:
    """Architecture, system and SoC of this host."""
    # `linux-x86_64`, `win-amd64`, `win-arm64`: the architecture of Python; platform.machine() gives the machine's
    arch = sysconfig.get_platform().rpartition("-")[2]
    arch = _SAME.get(arch, arch)
    system = {"win32": "windows"}.get(sys.platform, sys.platform)
    return arch, system, soc_called(_processor()) if arch == AARCH64 else None


def _processor() -> str:
    """The system's name for the SoC; "" if it has none."""
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

    Only the part number counts, as one marketing name stands for several dies.
    """
    for word in re.findall(r"[A-Za-z]+[0-9][A-Za-z0-9]*", re.sub(r"[-_]", "", text) if " " not in text else text):
        if soc := catalog.find(word):
            return soc.name
        for beginning, name in _PARTS.items():
            if word.lower().startswith(beginning):
                return name
    return None
