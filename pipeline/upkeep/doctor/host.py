"""The host: operating system, architecture, Python, C library, and the libraries that the QNN wheel needs."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import platform
import re
import struct
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.doctor.elf import read_library
from pipeline.doctor.finding import ENVIRONMENT, Finding, error, ok, unchecked, warning
from pipeline.doctor.machine import host_machine, python_machine

WHEELS = (("Linux", "x86_64"), ("Linux", "aarch64"), ("Windows", "x86_64"), ("Windows", "aarch64"))
"""For which systems onnxruntime-qnn 2.7.0 has wheels."""

PYTHONS = ((3, 11), (3, 14))
"""The first and the last Python that onnxruntime-qnn 2.7.0 has wheels for."""

GLIBC = {"x86_64": "2.35", "aarch64": "2.34"}
"""The manylinux tag of its wheels; the tag of the wheel that is installed goes before."""

_PACKAGES = {  # by the base name of a library, what Debian calls the package
    "libatomic": "libatomic1",
    "libc++": "libc++1",
    "libc++abi": "libc++abi1",
    "libunwind": "libunwind8",
    "libstdc++": "libstdc++6",
    "libgcc_s": "libgcc-s1",
}

_STUB = re.compile(r"libQnnHtpV\d+Stub\.so")
"""What QNN talks to an NPU through; loaded on a device only."""


@dataclass(frozen=True)
class HostFacts:
    """What is true of the host. `libraries` maps each library that the wheel needs to who needs it, and
    `missing` is what of these can't be loaded; None: the wheel is not there, or not of a kind that can be looked into.
    """

    system: str
    release: str
    machine: str
    python_machine: str
    python: tuple[int, int, int]
    implementation: str = "CPython"
    bits: int = 64
    free_threaded: bool = False
    libc: tuple[str, str] = ("", "")
    wheel_glibc: str = ""
    libraries: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    bundled: tuple[str, ...] = ()
    missing: tuple[str, ...] | None = None


def gather() -> HostFacts:
    """The facts of this host and this Python."""
    folder = _wheel_folder()
    libraries, bundled, missing = _libraries(folder) if folder and sys.platform == "linux" else ({}, (), None)
    return HostFacts(
        system=platform.system(),
        release=platform.release(),
        machine=host_machine(),
        python_machine=python_machine(),
        python=(sys.version_info[0], sys.version_info[1], sys.version_info[2]),
        implementation=platform.python_implementation(),
        bits=8 * struct.calcsize("P"),
        free_threaded=bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        libc=platform.libc_ver() if sys.platform == "linux" else ("", ""),
        wheel_glibc=_wheel_glibc(),
        libraries=libraries,
        bundled=bundled,
        missing=missing,
    )


def check(facts: HostFacts) -> Iterator[Finding]:
    """All findings about a host."""
    yield _system(facts)
    yield _architecture(facts)
    yield _python(facts)
    if facts.system == "Linux":
        yield _libc(facts)
        yield from _check_libraries(facts)


def refusal(facts: HostFacts) -> Finding | None:
    """The error that keeps a build from making sense here at all, told from what costs nothing to find out."""
    cheap = (_system(facts), _architecture(facts), _python(facts))
    return next((found for found in cheap if found.level == "error"), None)


def cheap_facts() -> HostFacts:
    """The facts that :func:`refusal` looks at."""
    return HostFacts(
        platform.system(),
        platform.release(),
        host_machine(),
        python_machine(),
        (sys.version_info[0], sys.version_info[1], sys.version_info[2]),
        platform.python_implementation(),
        8 * struct.calcsize("P"),
        bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    )


def _system(facts: HostFacts) -> Finding:
    what = f"{facts.system} {facts.release} on {facts.machine}"
    if (facts.system, facts.machine) in WHEELS:
        return ok("host.system", what)
    return error(
        "host.system",
        f"{what}: onnxruntime-qnn has no wheel for it",
        ENVIRONMENT,
        why="there are wheels for Linux and Windows on x86_64 and ARM64",
        remedy="build on one of these; in a Linux container or virtual machine if need be",
    )


def _architecture(facts: HostFacts) -> Finding:
    """A Python of the other architecture is emulated.

    On Windows it lists the QNN provider and dies at the first session. On Linux (binfmt_misc, qemu, containers of the
    other architecture) it is slow, and what comes out is byte-identical to what a machine of its own kind makes.
    """
    name = "host.architecture"
    mine, host = facts.python_machine, facts.machine
    if mine == host and facts.bits == 64:
        return ok(name, f"Python is made for {mine}, as the machine is")
    if (mine, host, facts.system) == ("x86_64", "aarch64", "Linux"):
        return warning(
            name,
            "x86_64 Python on an ARM64 machine: all of it is emulated",
            why="contexts come out right, and everything takes many times as long",
            remedy="build on an x86_64 host; an ARM64 Python compiles for this machine's own SoC only",
        )
    if (mine, host, facts.system) == ("aarch64", "x86_64", "Linux"):
        return warning(
            name,
            "ARM64 Python on an x86_64 machine: all of it is emulated",
            why="what it makes comes out right and takes many times as long, and the compiler for ARM64 finds no NPU",
            remedy="use an x86_64 Python, which compiles here for every target",
        )
    if (mine, host) == ("x86_64", "aarch64"):
        return error(
            name,
            "x86_64 Python on an ARM64 machine",
            ENVIRONMENT,
            why="the operating system says ARM64 and this Python is x86_64, so it is emulated: the QNN provider is "
            "listed, and the process dies at the first session with exit status 127",
            remedy="install Python for ARM64, which compiles for this machine's own SoC, "
            "or build on an x86_64 host, which compiles for all",
        )
    return error(
        name,
        f"{facts.bits}-bit Python for {mine} on a machine with {host}",
        ENVIRONMENT,
        why="onnxruntime and onnxruntime-qnn have wheels for 64-bit Python of the machine's own kind only",
        remedy=f"install 64-bit Python for {host}",
    )


def _python(facts: HostFacts) -> Finding:
    name = "host.python"
    written = ".".join(map(str, facts.python))
    what = f"{facts.implementation} {written}"
    first, last = (".".join(map(str, version)) for version in PYTHONS)
    remedy = f"use CPython {first} to {last}: uv python install {last}"
    if facts.implementation != "CPython":
        return error(name, f"{what}: wheels are made for CPython", ENVIRONMENT, remedy=remedy)
    if not PYTHONS[0] <= facts.python[:2] <= PYTHONS[1]:
        why = f"onnxruntime-qnn has wheels for Python {first} to {last}"
        return error(name, f"{what}: there are no wheels for it", ENVIRONMENT, why=why, remedy=remedy)
    if facts.free_threaded:
        why = "onnxruntime-qnn's wheels are for the build of Python with a GIL"
        return error(name, f"{what} without GIL: there are no wheels for it", ENVIRONMENT, why=why, remedy=remedy)
    if (facts.system, facts.python_machine, facts.python[:2]) == ("Windows", "aarch64", (3, 11)):
        why = "PyYAML has no wheel for Python 3.11 on Windows for ARM64, and needs a C compiler to be installed"
        return warning(name, f"{what} on Windows for ARM64", why=why, remedy="use Python 3.12 or 3.13")
    return ok(name, what)


def _libc(facts: HostFacts) -> Finding:
    name = "host.glibc"
    kind, version = facts.libc
    needed = facts.wheel_glibc or GLIBC.get(facts.python_machine, "")
    if kind != "glibc":
        why = "the wheels are made for glibc (manylinux); musl, as in Alpine, can't load them"
        remedy = "use a distribution with glibc, such as Debian 12 or Ubuntu 22.04"
        return error(name, "no glibc here" + (f", but {kind}" if kind else ""), ENVIRONMENT, why=why, remedy=remedy)
    if needed and _numbers(version) < _numbers(needed):
        return error(
            name,
            f"glibc {version} is older than {needed}",
            ENVIRONMENT,
            why=f"the wheel of onnxruntime-qnn is tagged manylinux_{needed.replace('.', '_')}",
            remedy="use a newer distribution, such as Debian 12 or Ubuntu 22.04, or a container of one",
        )
    return ok(name, f"glibc {version}" + (f"; the wheel needs {needed}" if needed else ""))


def _check_libraries(facts: HostFacts) -> Iterator[Finding]:
    name = "host.libraries"
    if facts.missing is None:
        why = "onnxruntime-qnn is not installed"
        yield unchecked(name, "which system libraries the QNN libraries need", why=why)
        return
    for library in facts.missing:
        users = facts.libraries.get(library, ())
        if users and all(_STUB.fullmatch(user) for user in users):
            yield warning(
                name,
                "it is not here: contexts are neither made nor run on an NPU",
                library,
                why="QNN reaches the NPU through it, and it comes with the NPU's driver, not with onnxruntime-qnn",
                remedy="where there is an NPU, install its driver; without one, all else works",
            )
            continue
        base = library.partition(".so")[0].partition("-")[0]
        package = _PACKAGES.get(base)
        yield error(
            name,
            f"{library} can't be loaded",
            ENVIRONMENT,
            library,
            why=f"{', '.join(users)} of onnxruntime-qnn need it",
            remedy=f"install it (Debian: apt-get install {package})" if package else "install it",
        )
    if not facts.missing:
        system = sorted(set(facts.libraries) - set(facts.bundled))
        what = f"the QNN libraries find all they need: {', '.join(system)}"
        if any(library.startswith("libc++") for library in facts.bundled):
            what += "; libc++ comes with the wheel"
        yield ok(name, what)


def _wheel_folder() -> Path | None:
    try:
        spec = importlib.util.find_spec("onnxruntime_qnn")
    except (ImportError, ValueError):
        return None
    return next((Path(folder) for folder in (spec.submodule_search_locations or ())), None) if spec else None


def _wheel_glibc() -> str:
    try:
        text = importlib.metadata.distribution("onnxruntime-qnn").read_text("WHEEL") or ""
    except importlib.metadata.PackageNotFoundError:
        return ""
    found = re.search(r"^Tag: .*manylinux_(\d+)_(\d+)_", text, re.MULTILINE)
    return f"{found[1]}.{found[2]}" if found else ""


def _libraries(folder: Path) -> tuple[Mapping[str, tuple[str, ...]], tuple[str, ...], tuple[str, ...] | None]:
    """What the libraries of the wheel need: who needs it, which of it the wheel brings, and what can't be found."""
    needed: dict[str, tuple[str, ...]] = {}
    bundled, missing = [], []
    paths = sorted([*folder.glob("*.so*"), *folder.parent.glob(f"{folder.name}.libs/*.so*")])
    if not paths:
        return {}, (), None
    found_in = {path.name: path for path in paths}
    for path in paths:
        library = read_library(path)
        for name in library.needed if library else ():
            needed[name] = (*needed.get(name, ()), path.name)
    for name in needed:
        if name in found_in:
            bundled.append(name)
        elif not _loads(name):
            missing.append(name)
    return needed, tuple(bundled), tuple(missing)


def _loads(name: str) -> bool:
    """Whether the system has a library of this name: by loading it, as only the loader knows all its rules."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
