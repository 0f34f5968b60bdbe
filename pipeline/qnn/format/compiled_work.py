"""What a context binary computes, whatever SoC it is for: a digest by which equal work is known.

A binary has the SoC's number in its metadata, and in front of each section of compiled work a header whose records are
a length in words of four bytes, a tag of two letters, and content. The record `Op` is text: options of the compiler,
the SoC's name, and figures of its memory by which the compiler estimates. What comes of them is the section. The
layout was read off binaries of onnxruntime-qnn 2.7 for all SoCs of the catalogue; of any other there is no digest.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Sequence
from pathlib import Path

from pipeline.qnn.format.context_binary import BinaryInfo

_MAGICS = (b"\x5c\xfa\x90\x37", b"\x2b\xf7\x09\x73")
_PREFIX = 8  # magic, length of the header in words, flags
_OPTIONS, _FIRST = b"Op", b"Id"
_PADDING = b"\0" * 64
"""As many zeros or more are padding: sections begin at pages of the file, which a longer name moves."""
_NOT_ZERO = re.compile(rb"[^\0]")


def work_digest(binary: Path, info: BinaryInfo) -> str | None:
    """The digest of what a binary for one SoC computes; `info` is what it says of itself. None for another layout."""
    data = binary.read_bytes()
    digest = hashlib.sha256(repr((info.htp_arch, info.sdk, info.graphs)).encode())
    headers = [found for place in _places(data) if (found := _header(data, place))]
    ends = [*(start for start, _, _ in headers), len(data)][1:]
    for (_, body, records), end in zip(headers, ends, strict=True):
        parts: list[Sequence[bytes | memoryview]] = [(record,) for record in records]
        for pieces in [*parts, _without_padding(data, body, end)]:
            digest.update(sum(map(len, pieces)).to_bytes(8, "little"))
            for piece in pieces:
                digest.update(piece)
    return digest.hexdigest() if headers else None


def _places(data: bytes) -> list[int]:
    """Where headers may begin. `find` is several times faster than a pattern, and binaries have hundreds of MB."""
    found = []
    for magic in _MAGICS:
        place = data.find(magic)
        while place >= 0:
            found.append(place)
            place = data.find(magic, place + len(magic))
    return sorted(found)


def _without_padding(data: bytes, start: int, end: int) -> list[memoryview]:
    """The pieces of a section between its runs of padding."""
    view = memoryview(data)
    pieces = []
    while (padding := data.find(_PADDING, start, end)) >= 0:
        pieces.append(view[start:padding])
        after = _NOT_ZERO.search(data, padding + len(_PADDING), end)
        start = after.start() if after else end
    return [*pieces, view[start:end]]


def _header(data: bytes, start: int) -> tuple[int, int, list[bytes]] | None:
    """Where a header begins and ends, and its records without the options; None if there is none at `start`."""
    if start + _PREFIX > len(data):
        return None
    end = start + 4 * struct.unpack_from("<H", data, start + 4)[0]
    records: list[bytes] = []
    tags: list[bytes] = []
    place = start + _PREFIX
    while place + 4 <= end <= len(data):
        words, tag = struct.unpack_from("<H2s", data, place)
        if not words or place + 4 * words > end:
            return None
        tags.append(tag)
        if tag != _OPTIONS:
            records.append(data[place : place + 4 * words])
        place += 4 * words
    return (start, end, records) if place == end and tags[:1] == [_FIRST] and _OPTIONS in tags else None
