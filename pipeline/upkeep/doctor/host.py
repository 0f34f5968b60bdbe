"""Checks the host: operating system, architecture, Python, C library, and the libraries that the QNN wheel needs.

Finds which processor a machine really has. An emulated process is usually told of the one that it is made for.

Reads from a Linux shared library's file which other libraries it needs.

Layout and constants: the ELF and GNU symbol versioning chapters of the Linux Standard Base
(https://refspecs.linuxfoundation.org/LSB_5.0.0/LSB-Core-generic/LSB-Core-generic/book1.html).
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import re
import struct
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import BinaryIO

from pipeline.frozen import dataclass
from pipeline.qnn.versions import numbers
from pipeline.upkeep.doctor.finding import Check, Finding

MACHINES = {62: "x86_64", 183: "aarch64", 3: "x86", 40: "arm"}
"""The machines by the numbers of the header's field `e_machine`."""

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_STRTAB, _DT_STRSZ = 1, 5, 10
_MAX_BYTES = 1 << 20  # of a table; those of real libraries have a few kB


def needed_libraries(path: Path) -> tuple[str, ...]:
    """The other libraries that a library needs; none if the file is no 64-bit little-endian ELF, or damaged."""
    try:
        with path.open("rb") as stream:
            return _read(stream)
    except (OSError, struct.error, ValueError, LookupError, OverflowError):
        return ()


def read_machine(path: Path) -> str:
    """The machine that an executable of any word size is for; "" if that can't be told."""
    try:
        with path.open("rb") as stream:
            head = stream.read(20)
    except OSError:
        return ""
    if len(head) < 20 or head[:4] != b"\x7fELF":
        return ""
    (number,) = struct.unpack("<H" if head[5] == 1 else ">H", head[18:20])
    return MACHINES.get(number, f"ELF machine {number}")


def _read(stream: BinaryIO) -> tuple[str, ...]:
    head = stream.read(64)
    if head[:6] != b"\x7fELF\x02\x01":
        return ()
    (headers_at,) = struct.unpack_from("<Q", head, 32)
    size, count = struct.unpack_from("<HH", head, 54)
    segments = []
    for number in range(count):
        raw = _at(stream, headers_at + number * size, 56)
        kind, _, offset, address, _, in_file, _, _ = struct.unpack("<IIQQQQQQ", raw)
        segments.append((kind, offset, address, in_file))
    dynamic = next(((offset, length) for kind, offset, _, length in segments if kind == _PT_DYNAMIC), None)
    if dynamic is None:
        return ()
    table = _at(stream, *dynamic)
    entries = [struct.unpack_from("<qQ", table, at) for at in range(0, len(table) - 15, 16)]
    values = dict(entries)
    (text_at, *_) = (
        offset + values[_DT_STRTAB] - address
        for kind, offset, address, length in segments
        if kind == _PT_LOAD and address <= values[_DT_STRTAB] < address + length
    )
    strings = _at(stream, text_at, values[_DT_STRSZ])
    return tuple(_string(strings, value) for tag, value in entries if tag == _DT_NEEDED)


def _at(stream: BinaryIO, offset: int, length: int) -> bytes:
    if length > _MAX_BYTES:
        raise ValueError("a table of this size is none of a real library")
    stream.seek(offset)
    data = stream.read(length)
    if len(data) < length:
        raise ValueError("the file ends early")
    return data


def _string(strings: bytes, at: int) -> str:
    return strings[at : strings.index(b"\0", at)].decode("utf-8", "replace")


WHEELS = (("Linux", "x86_64"), ("Linux", "aarch64"), ("Windows", "x86_64"), ("Windows", "aarch64"))
"""The systems that onnxruntime-qnn 2.7.0 has wheels for."""

PYTHONS = ((3, 11), (3, 14))
"""The first and the last Python that onnxruntime-qnn 2.7.0 has wheels for."""

GLIBC = {"x86_64": "2.35", "aarch64": "2.34"}
"""The least glibc by the manylinux tags of these wheels. The tag of the installed wheel goes before."""

_PACKAGES = {  # by the base name of a library, what Debian calls the package
    "libatomic": "libatomic1",
    "libc++": "libc++1",
    "libc++abi": "libc++abi1",
    "libunwind": "libunwind8",
    "libstdc++": "libstdc++6",
    "libgcc_s": "libgcc-s1",
}

_STUB = re.compile(r"libQnnHtpV\d+Stub\.so")
"""QNN talks to an NPU through these libraries. It loads them on a device only."""

_SYSTEM, _ARCHITECTURE, _PYTHON = Check("host.system"), Check("host.architecture"), Check("host.python")
_GLIBC, _LIBRARIES = Check("host.glibc"), Check("host.libraries")


@dataclass(frozen=True)
class HostFacts:
    """The facts about the host.

    `libraries` maps each library that the wheel needs to the libraries of the wheel that need it. `bundled` are those
    that the wheel brings, and `missing` those that can't be loaded; `missing` is None if the wheel is not installed or
    has no ELF libraries.
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
    facts = replace(cheap_facts(), wheel_glibc=_wheel_glibc())
    if sys.platform != "linux":
        return facts
    folder = _wheel_folder()
    libraries, bundled, missing = _libraries(folder) if folder else ({}, (), None)
    return replace(facts, libc=platform.libc_ver(), libraries=libraries, bundled=bundled, missing=missing)


def cheap_facts() -> HostFacts:
    """The facts that :func:`refusal` looks at."""
    return HostFacts(
        system=platform.system(),
        release=platform.release(),
        machine=host_machine(),
        python_machine=python_machine(),
        python=(sys.version_info[0], sys.version_info[1], sys.version_info[2]),
        implementation=platform.python_implementation(),
        bits=8 * struct.calcsize("P"),
        free_threaded=bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    )


def check(facts: HostFacts) -> Iterator[Finding]:
    """All findings about a host."""
    yield from _cheap(facts)
    if facts.system == "Linux":
        yield _libc(facts)
        yield from _check_libraries(facts)


def refusal(facts: HostFacts) -> Finding | None:
    """The error that keeps every build on this host from working, if one of the cheap checks finds one."""
    return next((found for found in _cheap(facts) if found.level == "error"), None)


def _cheap(facts: HostFacts) -> tuple[Finding, Finding, Finding]:
    return _system(facts), _architecture(facts), _python(facts)


def _system(facts: HostFacts) -> Finding:
    what = f"{facts.system} {facts.release} on {facts.machine}"
    if (facts.system, facts.machine) in WHEELS:
        return _SYSTEM.ok(what)
    return _SYSTEM.error(
        f"{what}: onnxruntime-qnn has no wheel for it",
        "there are wheels for Linux and Windows on x86_64 and ARM64",
        "build on one of these; in a Linux container or virtual machine if need be",
    )


def _architecture(facts: HostFacts) -> Finding:
    """The finding on the architecture. A Python for another architecture than the machine's is emulated.

    On Windows such a Python lists the QNN provider and dies at the first session. On Linux (binfmt_misc, qemu,
    containers of the other architecture) it is slow, and makes the same bytes as a machine of its own architecture.
    """
    mine, host = facts.python_machine, facts.machine
    if mine == host and facts.bits == 64:
        return _ARCHITECTURE.ok(f"Python is made for {mine}, as the machine is")
    if (mine, host, facts.system) == ("x86_64", "aarch64", "Linux"):
        return _ARCHITECTURE.warning(
            "x86_64 Python on an ARM64 machine: all of it is emulated",
            "contexts come out right, and everything takes many times as long",
            "build on an x86_64 host; an ARM64 Python compiles for this machine's own SoC only",
        )
    if (mine, host, facts.system) == ("aarch64", "x86_64", "Linux"):
        return _ARCHITECTURE.warning(
            "ARM64 Python on an x86_64 machine: all of it is emulated",
            "what it makes comes out right and takes many times as long, and the compiler for ARM64 finds no NPU",
            "use an x86_64 Python, which compiles here for every target",
        )
    if (mine, host) == ("x86_64", "aarch64"):
        return _ARCHITECTURE.error(
            "x86_64 Python on an ARM64 machine",
            "the operating system says ARM64 and this Python is x86_64, so it is emulated: the QNN provider is listed,"
            " and the process dies at the first session with exit status 127",
            "install Python for ARM64, which compiles for this machine's own SoC, or build on an x86_64 host, which"
            " compiles for all",
        )
    return _ARCHITECTURE.error(
        f"{facts.bits}-bit Python for {mine} on a machine with {host}",
        "onnxruntime and onnxruntime-qnn have wheels for 64-bit Python of the machine's own kind only",
        f"install 64-bit Python for {host}",
    )


def _python(facts: HostFacts) -> Finding:
    what = f"{facts.implementation} {'.'.join(map(str, facts.python))}"
    first, last = (".".join(map(str, version)) for version in PYTHONS)
    remedy = f"use CPython {first} to {last}: uv python install {last}"
    if facts.implementation != "CPython":
        return _PYTHON.error(f"{what}: wheels are made for CPython", remedy=remedy)
    if not PYTHONS[0] <= facts.python[:2] <= PYTHONS[1]:
        why = f"onnxruntime-qnn has wheels for Python {first} to {last}"
        return _PYTHON.error(f"{what}: there are no wheels for it", why, remedy)
    if facts.free_threaded:
        why = "onnxruntime-qnn's wheels are for the build of Python with a GIL"
        return _PYTHON.error(f"{what} without GIL: there are no wheels for it", why, remedy)
    if (facts.system, facts.python_machine, facts.python[:2]) == ("Windows", "aarch64", (3, 11)):
        why = "PyYAML has no wheel for Python 3.11 on Windows for ARM64, and needs a C compiler to be installed"
        return _PYTHON.warning(f"{what} on Windows for ARM64", why, "use Python 3.12 or 3.13")
    return _PYTHON.ok(what)


def _libc(facts: HostFacts) -> Finding:
    kind, version = facts.libc
    needed = facts.wheel_glibc or GLIBC.get(facts.python_machine, "")
    if kind != "glibc":
        why = "the wheels are made for glibc (manylinux); musl, as in Alpine, can't load them"
        remedy = "use a distribution with glibc, such as Debian 12 or Ubuntu 22.04"
        return _GLIBC.error("no glibc here" + (f", but {kind}" if kind else ""), why, remedy)
    if needed and numbers(version) < numbers(needed):
        why = f"the wheel of onnxruntime-qnn is tagged manylinux_{needed.replace('.', '_')}"
        remedy = "use a newer distribution, such as Debian 12 or Ubuntu 22.04, or a container of one"
        return _GLIBC.error(f"glibc {version} is older than {needed}", why, remedy)
    return _GLIBC.ok(f"glibc {version}" + (f"; the wheel needs {needed}" if needed else ""))


def _check_libraries(facts: HostFacts) -> Iterator[Finding]:
    if facts.missing is None:
        yield _LIBRARIES.unchecked("which system libraries the QNN libraries need", "onnxruntime-qnn is not installed")
        return
    for library in facts.missing:
        users = facts.libraries.get(library, ())
        if users and all(_STUB.fullmatch(user) for user in users):
            yield _LIBRARIES.about(library).warning(
                "it is not here: contexts are neither made nor run on an NPU",
                "QNN reaches the NPU through it, and it comes with the NPU's driver, not with onnxruntime-qnn",
                "where there is an NPU, install its driver; without one, all else works",
            )
            continue
        package = _PACKAGES.get(library.partition(".so")[0].partition("-")[0])
        why = f"{', '.join(users)} of onnxruntime-qnn need it"
        remedy = f"install it (Debian: apt-get install {package})" if package else "install it"
        yield _LIBRARIES.about(library).error(f"{library} can't be loaded", why, remedy)
    if not facts.missing:
        system = sorted(set(facts.libraries) - set(facts.bundled))
        bundled = any(library.startswith("libc++") for library in facts.bundled)
        what = f"the QNN libraries find all they need: {', '.join(system)}"
        yield _LIBRARIES.ok(what + ("; libc++ comes with the wheel" if bundled else ""))


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
    """The values for `libraries`, `bundled` and `missing` of :class:`HostFacts`."""
    needed: dict[str, tuple[str, ...]] = {}
    bundled, missing = [], []
    paths = sorted([*folder.glob("*.so*"), *folder.parent.glob(f"{folder.name}.libs/*.so*")])
    if not paths:
        return {}, (), None
    found_in = {path.name: path for path in paths}
    for path in paths:
        for name in needed_libraries(path):
            needed[name] = (*needed.get(name, ()), path.name)
    for name in needed:
        if name in found_in:
            bundled.append(name)
        elif not _loads(name):
            missing.append(name)
    return needed, tuple(bundled), tuple(missing)


def _loads(name: str) -> bool:
    """Whether the system's loader finds a library of this name. Only loading it tells."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


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
