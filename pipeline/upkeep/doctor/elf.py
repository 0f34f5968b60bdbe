"""Reads from a Linux shared library's file which other libraries it needs.

Layout and constants: the ELF and GNU symbol versioning chapters of the Linux Standard Base
(https://refspecs.linuxfoundation.org/LSB_5.0.0/LSB-Core-generic/LSB-Core-generic/book1.html).
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

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
