"""Writes and reads archives of releases: ZIP files of exactly one form, so that equal contents give equal bytes.

Any program can open them. The reader here accepts no other form: it writes every header again from what the directory
says and compares. So it refuses, and names, a changed byte, a second entry of one name, a gap, and anything before,
between or after the entries.

Makes the records of a ZIP file in the one form that releases have: names, sizes and CRCs determine every byte.

PKWARE's APPNOTE 6.3.9, sections 4.3 and 4.5.3. Entries are stored, not compressed; their time is 1980-01-01, the
earliest that a ZIP can hold, and their mode 0644. ZIP64 is used where a number needs it, never elsewhere.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NoReturn, Self

from pipeline.errors import StoreError, VerificationError
from pipeline.frozen import dataclass
from pipeline.store.digests import sha256_file
from pipeline.store.durable import UNRELATED, move, sync_file, sync_folder

_CHUNK = 1 << 20
_MAX_DIRECTORY = 1 << 26
_SEGMENT = r"(?!\.{1,2}(?:/|$))[^/\\:*?\x22<>|\x00-\x1f\x7f]+(?<![. ])"
_NAME = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")
_DEVICE = re.compile(
    r"(?:^|/)(?:con|prn|aux|nul|(?:com|lpt)[0-9\u00b9\u00b2\u00b3])(?:[ .][^/]*)?(?:/|$)", re.IGNORECASE
)
"""Names of devices on Windows, in whatever folder: https://learn.microsoft.com/windows/win32/fileio/naming-a-file."""


class UnusableError(StoreError):
    """A file for an archive can't be read, or does not have the digest that was given for it."""


@dataclass(frozen=True)
class Member:
    """The content of one file of an archive: bytes, or the path of a file that must have the digest."""

    sha256: str
    size: int
    source: bytes | Path

    @classmethod
    def of(cls, data: bytes) -> Self:
        """The member with these bytes as content."""
        return cls(hashlib.sha256(data).hexdigest(), len(data), data)


def write_archive(path: Path, members: Mapping[str, Member], folder: Path | None = None) -> str:
    """Write `path` atomically. Returns the SHA-256 of the archive.

    The archive is first written in `folder`, which is tidied if we die, or else under a hidden name beside `path`.

    Raises:
        UnusableError: a file does not have its digest, or can't be read.
        ValueError: a name is one that files can't have on some system.
        OSError: `path` can't be written.
    """
    for name in members:
        if why := _name_fault(name):
            raise ValueError(f"{name!r} can't be a name in an archive: {why}")
    if alike := _alike(members):
        raise ValueError(f"{alike[0]!r} and {alike[1]!r} can't both be names in an archive: they differ in case alone")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder / path.name if folder else path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            entries = [_write_entry(stream, name, members[name]) for name in sorted(members)]
            stream.write(directory(entries))
        sync_file(temporary)
        sha256 = sha256_file(temporary)
        move(temporary, path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
    return sha256


def _write_entry(stream: BinaryIO, name: str, member: Member) -> Entry:
    """Write header and content, then the header again with the CRC of the content."""
    entry = Entry(name, member.size, 0, stream.tell())
    stream.write(local_header(entry))
    digest, crc, size = hashlib.sha256(), 0, 0
    for chunk in _chunks(name, member.source):
        digest.update(chunk)
        crc, size = zlib.crc32(chunk, crc), size + len(chunk)
        stream.write(chunk)
    if digest.hexdigest() != member.sha256 or size != member.size:
        raise _unusable(name, member.source, "its SHA-256 is not the one it was stored under")
    entry = replace(entry, crc=crc)
    stream.seek(entry.offset)
    stream.write(local_header(entry))
    stream.seek(entry.end)
    return entry


def _chunks(name: str, source: bytes | Path) -> Iterator[bytes]:
    if isinstance(source, bytes):
        yield source
        return
    try:
        with source.open("rb", buffering=0) as stream:
            while chunk := stream.read(_CHUNK):
                yield chunk
    except OSError as error:
        if error.errno in UNRELATED:
            raise
        raise _unusable(name, source, error.strerror or str(error)) from error


def _unusable(name: str, source: bytes | Path, why: str) -> UnusableError:
    return UnusableError(
        f"a file that belongs into the release is corrupt: {name}",
        where=str(source) if isinstance(source, Path) else "",
        why=why,
        remedy="run the same command again: what is corrupt is made again",
    )


class Archive:
    """An archive whose headers were checked on opening. Reading a file checks its CRC.

    Opening and every method raise VerificationError for an archive of another form, and OSError.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream = path.open("rb")
        try:
            self.entries: Mapping[str, Entry] = {entry.name: entry for entry in self._read_entries()}
        except BaseException:
            self._stream.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stream.close()

    def read(self, name: str, limit: int) -> bytes:
        """All of one file, which may have at most `limit` bytes."""
        entry = self.entries.get(name)
        if entry is None:
            self._refuse(f"{name} is missing")
        if entry.size > limit:
            self._refuse(f"{name} is too large: {entry.size} bytes, {limit} may be")
        return b"".join(self.chunks(name))

    def sha256(self, name: str) -> str:
        """The digest of one file's content."""
        digest = hashlib.sha256()
        for chunk in self.chunks(name):
            digest.update(chunk)
        return digest.hexdigest()

    def chunks(self, name: str) -> Iterator[bytes]:
        """The content of one file; its CRC is checked at the end."""
        entry = self.entries[name]
        crc, left = 0, entry.size
        self._stream.seek(entry.data)
        while left:
            chunk = self._stream.read(min(left, _CHUNK))
            if not chunk:
                self._refuse(f"{name} is cut short")
            crc, left = zlib.crc32(chunk, crc), left - len(chunk)
            yield chunk
        if crc != entry.crc:
            self._refuse(f"{name} is corrupt: its content has not the CRC that its header says")

    def _read_entries(self) -> list[Entry]:
        size = self._stream.seek(0, os.SEEK_END)
        start, count = self._find_directory(size)
        if not 0 <= start <= size or size - start > _MAX_DIRECTORY:
            self._refuse("it is no archive of a release: its directory lies outside, or is too large")
        tail = self._at(start, size - start)
        entries: list[Entry] = []
        position = 0
        for _ in range(count):
            entry, position = self._parse(tail, position)
            expected = entries[-1].end if entries else 0
            if entry.offset != expected:
                self._refuse(f"{entry.name} begins at byte {entry.offset}, not at {expected} where it should")
            if entries and entry.name <= entries[-1].name:
                self._refuse(f"{entry.name} comes after {entries[-1].name}: entries are sorted, each name there once")
            if entry.end > start:
                self._refuse(f"{entry.name} reaches into the directory")
            if self._at(entry.offset, entry.data - entry.offset) != local_header(entry):
                self._refuse(f"the header of {entry.name} is not what the directory says of it")
            entries.append(entry)
        if (entries[-1].end if entries else 0) != start:
            self._refuse("there is something between the last entry and the directory")
        if directory(entries) != tail:
            self._refuse(f"{_other_record(entries, tail)} is not of the form that releases have")
        if alike := _alike(entry.name for entry in entries):
            self._refuse(f"two of its names differ in case alone: {alike[0]} and {alike[1]}")
        return entries

    def _find_directory(self, size: int) -> tuple[int, int]:
        """Where the directory begins, and how many entries it has."""
        if size < END.size:
            self._refuse("it is no archive: too short")
        end = END.unpack(self._at(size - END.size, END.size))
        if end[0] != END_SIGNATURE:
            self._refuse("it is no archive of a release: it does not end as one")
        count, start = end[4], end[6]
        at = size - END.size - LOCATOR_64.size
        if (count == LIMIT_16 or start == LIMIT_32) and at >= END_64.size:
            end_64 = END_64.unpack(self._at(at - END_64.size, END_64.size))
            count, start = end_64[7], end_64[9]
        return start, count

    def _parse(self, tail: bytes, position: int) -> tuple[Entry, int]:
        """The entry of the directory's record at `position`, and where the next begins. The caller checks the entry."""
        if len(tail) < position + CENTRAL.size:
            self._refuse("its directory is cut short")
        fields = CENTRAL.unpack_from(tail, position)
        crc, size, name_length, extra_length, offset = fields[7], fields[8], fields[10], fields[11], fields[16]
        begin = position + CENTRAL.size
        try:
            name = tail[begin : begin + name_length].decode()
        except UnicodeDecodeError:
            self._refuse("its directory has a name that is not UTF-8")
        if why := _name_fault(name):
            self._refuse(f"its directory has the name {name!r}, {why}")
        extra = tail[begin + name_length : begin + name_length + extra_length]
        large = [int.from_bytes(extra[at : at + 8], "little") for at in range(4, len(extra), 8)]
        if size == LIMIT_32 and len(large) >= 2:
            size = large.pop(0)
            large.pop(0)
        if offset == LIMIT_32 and large:
            offset = large.pop(0)
        return Entry(name, size, crc, offset), begin + name_length + extra_length

    def _at(self, offset: int, size: int) -> bytes:
        self._stream.seek(offset)
        return self._stream.read(size)

    def _refuse(self, why: str) -> NoReturn:
        raise damaged(self._path, why)


def damaged(path: Path, what: str, why: str = "") -> VerificationError:
    """The error for a release that was changed."""
    return VerificationError(
        f"{path.name}: {printable(what)}",
        where=str(path),
        why=printable(why),
        remedy="get the file again; if it stays so, who made it has to package it again",
    )


def printable(text: str) -> str:
    """A text from a file, without characters that a terminal could take for a command."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def _other_record(entries: Iterable[Entry], tail: bytes) -> str:
    """The name of the first part of a directory that differs from what these entries give."""
    at = 0
    for entry in entries:
        header = central_header(entry)
        if tail[at : at + len(header)] != header:
            return f"the directory's record of {entry.name}"
        at += len(header)
    return "the end of its directory"


def _alike(names: Iterable[str]) -> tuple[str, str] | None:
    """The first two names that differ only in upper and lower case; None if there are none."""
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.setdefault(name.casefold(), name)) != name:
            return other, name
    return None


def _name_fault(name: str) -> str:
    """Why an archive can't have this name; "" if it can."""
    if not _NAME.fullmatch(name) or _DEVICE.search(name):
        return "which some systems can't have"
    return "which is too long" if len(name.encode()) > 4000 else ""


LIMIT_32, LIMIT_16 = 0xFFFFFFFF, 0xFFFF
"""A number this large or larger does not fit into its field: the field has this value, and ZIP64's has the number."""

END = struct.Struct("<4s4H2LH")
END_64 = struct.Struct("<4sQ2H2L4Q")
LOCATOR_64 = struct.Struct("<4sLQL")
CENTRAL = struct.Struct("<4s6H3L5H2L")
LOCAL = struct.Struct("<4s5H3L2H")
END_SIGNATURE, END_64_SIGNATURE, LOCATOR_SIGNATURE = b"PK\5\6", b"PK\6\6", b"PK\6\7"
CENTRAL_SIGNATURE, LOCAL_SIGNATURE = b"PK\1\2", b"PK\3\4"

_PLAIN, _ZIP64 = 20, 45  # the version of the format that a reader must know
_UNIX = 3 << 8
_NAMES_ARE_UTF8 = 1 << 11
_STORED = 0
_TIME, _DATE = 0, 1 << 5 | 1
_MODE = 0o100644 << 16
_EXTRA_64 = 1


@dataclass(frozen=True)
class Entry:
    """One file in an archive; its local header begins at `offset`."""

    name: str
    size: int
    crc: int
    offset: int

    @property
    def data(self) -> int:
        """Where its content begins."""
        return self.offset + len(local_header(self))

    @property
    def end(self) -> int:
        """Where the next entry begins."""
        return self.data + self.size


def local_header(entry: Entry) -> bytes:
    """The header before the content."""
    name = entry.name.encode()
    large = entry.size >= LIMIT_32
    extra = struct.pack("<2H2Q", _EXTRA_64, 16, entry.size, entry.size) if large else b""
    size = min(entry.size, LIMIT_32)
    needs = _ZIP64 if large else _PLAIN
    return (
        LOCAL.pack(
            LOCAL_SIGNATURE, needs, _NAMES_ARE_UTF8, _STORED, _TIME, _DATE, entry.crc, size, size, len(name), len(extra)
        )
        + name
        + extra
    )


def central_header(entry: Entry) -> bytes:
    """The entry's record in the directory."""
    name = entry.name.encode()
    large = [entry.size] * 2 if entry.size >= LIMIT_32 else []
    large += [entry.offset] if entry.offset >= LIMIT_32 else []
    extra = struct.pack(f"<2H{len(large)}Q", _EXTRA_64, 8 * len(large), *large) if large else b""
    needs = _ZIP64 if large else _PLAIN
    size = min(entry.size, LIMIT_32)
    fixed = (_UNIX | needs, needs, _NAMES_ARE_UTF8, _STORED, _TIME, _DATE, entry.crc, size, size, len(name), len(extra))
    return CENTRAL.pack(CENTRAL_SIGNATURE, *fixed, 0, 0, 0, _MODE, min(entry.offset, LIMIT_32)) + name + extra


def directory(entries: Sequence[Entry]) -> bytes:
    """The directory and its end, which follow the content of the last entry."""
    records = b"".join(central_header(entry) for entry in entries)
    start, count = entries[-1].end if entries else 0, len(entries)
    tail = b""
    if count >= LIMIT_16 or start >= LIMIT_32 or len(records) >= LIMIT_32:
        size = END_64.size - 12  # of what follows this field
        tail += END_64.pack(END_64_SIGNATURE, size, _UNIX | _ZIP64, _ZIP64, 0, 0, count, count, len(records), start)
        tail += LOCATOR_64.pack(LOCATOR_SIGNATURE, 0, start + len(records), 1)
    short = min(count, LIMIT_16)
    tail += END.pack(END_SIGNATURE, 0, 0, short, short, min(len(records), LIMIT_32), min(start, LIMIT_32), 0)
    return records + tail
