"""Computes a digest of the work in a context binary. Binaries for different SoCs with equal work have equal digests.

A binary has the SoC's number in its metadata, and in front of each section of compiled work a header whose records are
a length in words of four bytes, a tag of two letters, and content. The record `Op` is text: options of the compiler,
the SoC's name, and figures of its memory by which the compiler estimates. What comes of them is the section. The
layout was read off binaries of onnxruntime-qnn 2.7 for all SoCs of the catalogue; of any other there is no digest.
"""

from __future__ import annotations

import hashlib
import mmap
import re
import struct
from collections.abc import Iterator
from pathlib import Path

from pipeline.qnn.format.context_binary import BinaryInfo

_MAGICS = tuple(re.compile(re.escape(magic)) for magic in (b"\x5c\xfa\x90\x37", b"\x2b\xf7\x09\x73"))
"""One pattern each: one of both takes eight times as long, and binaries have hundreds of MB."""
_PREFIX = 8  # magic, length of the header in words, flags
_OPTIONS, _FIRST = b"Op", b"Id"
_PADDING = b"\0" * 64
"""As many zeros or more are padding: sections begin at pages of the file, which a longer name moves."""
_NOT_ZERO = re.compile(rb"[^\0]")


def work_digest(binary: Path, info: BinaryInfo) -> str | None:
    """The digest of what a binary for one SoC computes; `info` is what it says of itself. None for another layout."""
    with binary.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        digest = hashlib.sha256(repr((info.htp_arch, info.sdk, info.graphs)).encode())
        headers = [found for place in _places(data) if (found := _header(data, place))]
        ends = [*(start for start, _, _ in headers), len(data)][1:]
        with memoryview(data) as view:
            for (_, body, records), end in zip(headers, ends, strict=True):
                for record in records:
                    digest.update(len(record).to_bytes(8, "little") + record)
                pieces = [*_without_padding(data, body, end)]
                digest.update(sum(until - start for start, until in pieces).to_bytes(8, "little"))
                for start, until in pieces:
                    with view[start:until] as piece:
                        digest.update(piece)
    return digest.hexdigest() if headers else None


def _places(data: mmap.mmap) -> list[int]:
    """Where headers may begin."""
    return sorted(match.start() for magic in _MAGICS for match in magic.finditer(data))


def _without_padding(data: mmap.mmap, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Where the pieces of a section between its runs of padding begin and end."""
    while (padding := data.find(_PADDING, start, end)) >= 0:
        yield start, padding
        after = _NOT_ZERO.search(data, padding + len(_PADDING), end)
        start = after.start() if after else end
    yield start, end


def _header(data: mmap.mmap, start: int) -> tuple[int, int, list[bytes]] | None:
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
