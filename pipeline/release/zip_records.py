"""Makes the records of a ZIP file in the one form that releases have: names, sizes and CRCs determine every byte.

PKWARE's APPNOTE 6.3.9, sections 4.3 and 4.5.3. Entries are stored, not compressed; their time is 1980-01-01, the
earliest that a ZIP can hold, and their mode 0644. ZIP64 is used where a number needs it, never elsewhere.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from pipeline.frozen import dataclass

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
