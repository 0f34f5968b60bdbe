"""Records in a DLC, the container that QNN keeps a binary for several SoCs in: read and written to the byte.

A DLC is a ZIP archive (https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT) of a narrow kind, as QNN SDK 2.51
writes it: nothing is compressed, no CRC is stored, dates are zero, sizes are 64 bits wide and in the ZIP64 extra field.
That field has two numbers more than the standard's, how much padding follows it and for which alignment, so that a
record's bytes start at a multiple of 4096 and can be mapped. Records follow each other without a gap. A reader of ZIP
files in general would take much else, so nothing but this kind is taken here, and what is read stays bounded whatever
a damaged or hostile file says.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pipeline.errors import CompileError

MAX_RECORDS = 1000
_MAX_DIRECTORY = 1 << 20
_VERSION = 45  # of the ZIP specification: the first with 64 bit sizes
_WIDE = 0xFFFFFFFF  # a size or offset of 32 bits that refers to the ZIP64 field
_CHUNK = 1 << 24
_NAME = re.compile(r"[A-Za-z0-9._<>-]{1,200}")
_DIRECTORY_ORDER = ("dlc.metadata", "htp.cache.", "htp.shared.", "")  # by kind of record, then by name

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_EXTRA = struct.Struct("<2H3Q4I")  # id, size; bytes twice, header's offset; disk, padding, alignment, 0
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")
_END = struct.Struct("<4s4H2IH")
_TAIL = _END64.size + _LOCATOR.size + _END.size


@dataclass(frozen=True)
class DlcRecord:
    """A record of the archive `path`: its bytes are `size` bytes from `offset` on."""

    path: Path
    name: str
    offset: int
    size: int
    alignment: int

    def chunks(self) -> Iterator[bytes]:
        """The record's bytes, some at a time."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            left = self.size
            while left:
                chunk = file.read(min(left, _CHUNK))
                if not chunk:
                    raise _unreadable(self.path, f"its record {self.name!r} is cut short")
                left -= len(chunk)
                yield chunk


@dataclass(frozen=True)
class NewRecord:
    """A record with other bytes than it was read with."""

    name: str
    alignment: int
    data: bytes

    @property
    def size(self) -> int:
        """In bytes."""
        return len(self.data)

    def chunks(self) -> Iterator[bytes]:
        """The record's bytes."""
        yield self.data


def is_dlc(path: Path) -> bool:
    """Whether a binary is an archive of records; if not, it is a binary for one SoC."""
    with path.open("rb") as file:
        return file.read(4) == b"PK\3\4"


def read_records(path: Path) -> tuple[DlcRecord, ...]:
    """The records of an archive, in the order of their bytes. No more than the archive's directory is read.

    Raises:
        CompileError: it is not an archive as QNN writes it, to the last byte.
    """
    with path.open("rb") as file:
        try:
            return tuple(_records(file, path))
        except struct.error as error:
            raise _unreadable(path, "it is cut short") from error


def write_records(path: Path, records: Sequence[DlcRecord | NewRecord]) -> None:
    """Write an archive as QNN does; equal records in equal order give equal bytes."""
    directory: dict[str, bytes] = {}
    with path.open("xb") as file:
        for record in records:
            start, name = file.tell(), record.name.encode()
            padding = -(start + _LOCAL.size + len(name) + _EXTRA.size) % record.alignment
            file.write(_local(record, name, padding))
            for chunk in record.chunks():
                file.write(chunk)
            directory[record.name] = _central(record, name, start)
        start = file.tell()
        for entry in sorted(directory, key=_in_directory):
            file.write(directory[entry])
        file.write(_tail(len(directory), start, file.tell() - start))


def _in_directory(name: str) -> tuple[int, str]:
    return next(place for place, kind in enumerate(_DIRECTORY_ORDER) if name.startswith(kind)), name


def _records(file: BinaryIO, path: Path) -> Iterator[DlcRecord]:
    count, start, size = _directory(file, path)
    file.seek(start)
    directory = file.read(size)
    entries: dict[int, tuple[bytes, int]] = {}
    names = set()
    position = 0
    for _ in range(count):
        name, bytes_, offset, length = _entry(directory, position, path)
        position += length
        names.add(name)
        entries[offset] = (name, bytes_)
    if len(names) != count or len(entries) != count or position != size:
        raise _unreadable(path, "two of its records have one name or one place, or its directory is longer than it")
    end = 0
    for offset in sorted(entries):
        if offset != end or offset + entries[offset][1] > start:
            raise _unreadable(path, f"its records overlap, or there is something between them, at byte {end}")
        record = _record(file, path, offset, *entries[offset])
        end = record.offset + record.size
        yield record
    if end != start:
        raise _unreadable(path, f"its directory does not follow its records, at byte {end}")


def _directory(file: BinaryIO, path: Path) -> tuple[int, int, int]:
    """How many records there are; where the directory is, and how long."""
    total = file.seek(0, os.SEEK_END)
    if total < _TAIL:
        raise _unreadable(path, "it is cut short")
    file.seek(total - _TAIL)
    tail = file.read(_TAIL)
    *_, count, size, start = _END64.unpack_from(tail)
    if (
        count > MAX_RECORDS
        or size > _MAX_DIRECTORY
        or start + size + _TAIL != total
        or tail != _tail(count, start, size)
    ):
        raise _unreadable(path, "it does not end as an archive of QNN's does")
    return count, start, size


def _entry(directory: bytes, position: int, path: Path) -> tuple[bytes, int, int, int]:
    """Name and size of a record, where it is, and how long its entry is."""
    header = _CENTRAL.unpack_from(directory, position)
    name = directory[position + _CENTRAL.size :][: header[10]]
    extra = _EXTRA.unpack_from(directory, position + _CENTRAL.size + len(name))
    size, offset = extra[2], extra[4]
    length = _CENTRAL.size + len(name) + _EXTRA.size
    try:
        known = bool(_NAME.fullmatch(name.decode("ascii")))
    except UnicodeDecodeError:
        known = False
    stand_in = NewRecord("", 1, b"")
    if not known or directory[position : position + length] != _central(stand_in, name, offset, size):
        raise _unreadable(path, f"the entry of {name!r} in its directory has a form that is not known here")
    return name, size, offset, length


def _record(file: BinaryIO, path: Path, start: int, name: bytes, size: int) -> DlcRecord:
    file.seek(start)
    header = file.read(_LOCAL.size + len(name) + _EXTRA.size)
    *_, padding, alignment, _zero = _EXTRA.unpack_from(header, _LOCAL.size + len(name))
    offset = start + len(header) + padding
    record = DlcRecord(path, name.decode(), offset, size, alignment)
    if not 0 < alignment <= 1 << 16 or padding != -(start + len(header)) % alignment:
        raise _unreadable(path, f"its record {record.name!r} is not aligned")
    if header + file.read(padding) != _local(record, name, padding):
        raise _unreadable(path, f"its record {record.name!r} has a header that differs from its directory's")
    return record


def _local(record: DlcRecord | NewRecord, name: bytes, padding: int) -> bytes:
    header = _LOCAL.pack(b"PK\3\4", _VERSION, 0, 0, 0, 0, 0, _WIDE, _WIDE, len(name), _EXTRA.size + padding)
    size = _EXTRA.size - 4 + padding
    extra = _EXTRA.pack(1, size, record.size, record.size, 0, 0, padding, record.alignment, 0)
    return header + name + extra + bytes(padding)


def _central(record: DlcRecord | NewRecord, name: bytes, start: int, size: int | None = None) -> bytes:
    size = record.size if size is None else size
    sizes = (_WIDE, _WIDE, len(name), _EXTRA.size)
    header = _CENTRAL.pack(b"PK\1\2", _VERSION, _VERSION, 0, 0, 0, 0, 0, *sizes, 0, 0, 0, 0, _WIDE)
    return header + name + _EXTRA.pack(1, _EXTRA.size - 4, size, size, start, 0, 0, 0, 0)


def _tail(count: int, start: int, size: int) -> bytes:
    end64 = _END64.pack(b"PK\6\6", _END64.size - 12, _VERSION, _VERSION, 0, 0, count, count, size, start)
    locator = _LOCATOR.pack(b"PK\6\7", 0, start + size, 1)
    return end64 + locator + _END.pack(b"PK\5\6", 0, 0, count, count, size, _WIDE, 0)


def _unreadable(path: Path, why: str) -> CompileError:
    return CompileError(
        "the context binary for several SoCs can't be read",
        where=path.name,
        why=why,
        remedy="build it again; if that gives the same, onnxruntime-qnn has changed its format",
    )
