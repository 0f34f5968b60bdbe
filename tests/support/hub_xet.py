"""The part of the local hub that takes large files by Xet: what a client sends, put together again.

A file comes as chunks in xorbs, and a shard that says of it, among much else, the SHA-256. Of the protocol
(https://huggingface.co/docs/xet) this knows as much as one upload of a file that is new in all its parts needs.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

_HEADER_BYTES = 8
_STORED, _LZ4 = 0, 1


@dataclass
class XetStorage:
    """What came in: the chunks of each xorb, in the order that the xorbs came, and the shards."""

    token: str = "xet-aTokenThatNobodyMaySee"
    xorbs: list[bytes] = field(default_factory=list)
    shards: int = 0

    def take_xorb(self, body: bytes) -> None:
        """Keep the chunks of a xorb."""
        self.xorbs.append(b"".join(chunks(body)))

    def files(self) -> dict[str, bytes]:
        """The content that all xorbs together are, by its digest."""
        content = b"".join(self.xorbs)
        return {hashlib.sha256(content).hexdigest(): content}


def chunks(xorb: bytes) -> list[bytes]:
    """The chunks of a xorb, each a header, of version, sizes and the kind of compression, and data."""
    found, at = [], 0
    while at + _HEADER_BYTES <= len(xorb) and xorb[at] == 0:
        size, kind = int.from_bytes(xorb[at + 1 : at + 4], "little"), xorb[at + 4]
        at += _HEADER_BYTES
        data = xorb[at : at + size]
        assert kind in (_STORED, _LZ4), f"a chunk of kind {kind}"
        found.append(data if kind == _STORED else lz4_frame(data))
        at += size
    return found


def lz4_frame(data: bytes) -> bytes:
    """What an LZ4 frame holds (https://github.com/lz4/lz4/blob/dev/doc/lz4_Frame_format.md)."""
    flags = data[4]
    at = 7 + (8 if flags & 8 else 0) + (4 if flags & 1 else 0)
    out = bytearray()
    while size := int.from_bytes(data[at : at + 4], "little"):
        at += 4
        block = data[at : at + (size & 0x7FFFFFFF)]
        if size >> 31:
            out += block
        else:
            lz4_block(block, out)
        at += len(block) + (4 if flags & 16 else 0)
    return bytes(out)


def lz4_block(data: bytes, out: bytearray) -> None:
    """Add what an LZ4 block holds."""
    at = 0
    while at < len(data):
        token = data[at]
        length, at = _length(data, at + 1, token >> 4)
        out += data[at : at + length]
        at += length
        if at >= len(data):
            return
        offset = int.from_bytes(data[at : at + 2], "little")
        length, at = _length(data, at + 2, token & 15)
        for _ in range(length + 4):
            out.append(out[-offset])


def _length(data: bytes, at: int, length: int) -> tuple[int, int]:
    if length == 15:
        while data[at] == 255:
            length, at = length + 255, at + 1
        length, at = length + data[at], at + 1
    return length, at
