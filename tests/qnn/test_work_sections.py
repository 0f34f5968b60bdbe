"""What counts of a binary's sections, on bytes laid out as the compiler does."""

from __future__ import annotations

import struct
from pathlib import Path

from pipeline.qnn.format.compiled_work import work_digest
from pipeline.qnn.format.context_binary import BinaryInfo

INFO = BinaryInfo(6, "v2.51.0.1", 60, 73, ())


def _section(magic: bytes, options: bytes, body: bytes) -> bytes:
    records = struct.pack("<H2sI", 2, b"Id", 7) + struct.pack("<H2s", 1 + len(options) // 4, b"Op") + options
    return magic + struct.pack("<HH", 2 + len(records) // 4, 0) + records + body


def _digest(folder: Path, *sections: bytes) -> str | None:
    path = folder / "net.bin"
    path.write_bytes(b"metadata" + b"".join(sections))
    return work_digest(path, INFO)


def test_padding_and_options_do_not_count_and_all_else_does(tmp_path: Path) -> None:
    one, two = b"\x5c\xfa\x90\x37", b"\x2b\xf7\x09\x73"

    def digest(padding: int, options: bytes = b"soc1", end: bytes = b"end") -> str | None:
        body = b"ab" + bytes(padding) + b"cd" + bytes(5) + b"ef" + bytes(padding)
        return _digest(tmp_path, _section(two, options, body), _section(one, options, body + end))

    known = digest(64)
    assert known is not None
    assert digest(65) == digest(4096) == digest(4096, b"another ") == known
    assert len({known, digest(63), digest(62), digest(64, end=b"fin")}) == 4


def test_where_a_section_ends_counts(tmp_path: Path) -> None:
    magic = b"\x5c\xfa\x90\x37"
    parted = [
        _digest(tmp_path, _section(magic, b"", a), _section(magic, b"", b)) for a, b in ((b"xy", b"z"), (b"x", b"yz"))
    ]
    assert len({*parted, _digest(tmp_path, _section(magic, b"", b"xyz"))}) == 3


def test_without_a_header_there_is_no_digest(tmp_path: Path) -> None:
    assert _digest(tmp_path, b"\x5c\xfa\x90\x37", b"nothing of ours") is None
