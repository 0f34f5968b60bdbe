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
from collections.abc import Iterator
from pathlib import Path

from pipeline.qnn.format.context_binary import BinaryInfo

_MAGICS = re.compile(rb"\x5c\xfa\x90\x37|\x2b\xf7\x09\x73")
_PREFIX = 8  # magic, length of the header in words, flags
_OPTIONS, _FIRST = b"Op", b"Id"
_PADDING = re.compile(rb"\0{64,}")
"""Sections are padded to pages of the file, which a longer name moves."""


def work_digest(binary: Path, info: BinaryInfo) -> str | None:
    """The digest of what a binary for one SoC computes; `info` is what it says of itself. None for another layout."""
    data = binary.read_bytes()
    digest = hashlib.sha256(repr((info.htp_arch, info.sdk, info.graphs)).encode())
    found = 0
    for part in _work(data):
        digest.update(len(part).to_bytes(8, "little") + part)
        found += 1
    return digest.hexdigest() if found else None


def _work(data: bytes) -> Iterator[bytes]:
    """The records of each header but the options, and what follows it."""
    headers = [found for match in _MAGICS.finditer(data) if (found := _header(data, match.start()))]
    ends = [*(start for start, _, _ in headers), len(data)][1:]
    for (_, body, records), end in zip(headers, ends, strict=True):
        yield from records
        yield _PADDING.sub(b"", data[body:end])


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
