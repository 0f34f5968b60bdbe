"""Reads what QNN's compiler says of the traffic of a graph, in the schematic that `profiling_level=optrace` leaves.

A schematic is text with some binary parts. Of each operator that the chip runs it has a line such as
``{"opid" : 0x4f33, "dram_read": 2048 , "dram_write": 0 , "vtcm_read": 0 , "vtcm_write": 2048, "is_dma": 1}``
(QAIRT 2.51; the form is not documented).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_LINE = re.compile(rb'"dram_read": *(\d+) *, *"dram_write": *(\d+) *,')
_LONGEST = 1 << 16
_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Traffic:
    """Bytes that the compiler plans to read from DRAM and to write to it in one run."""

    read_bytes: int
    write_bytes: int


def schematic_name(graph: str) -> str:
    """The file that the compiler leaves for a graph."""
    return f"{graph}_schematic.bin"


def read_traffic(path: Path) -> Traffic | None:
    """The traffic of a graph; None if there is no schematic, or none of the form that is known."""
    if not path.is_file():
        return None
    read = write = found = 0
    with path.open("rb") as stream:
        for lines in _pieces(stream):
            for match in _LINE.finditer(lines):
                found += 1
                read, write = read + int(match[1]), write + int(match[2])
    return Traffic(read, write) if found else None


def _pieces(stream: BinaryIO) -> Iterator[bytes]:
    """A file in pieces that end with a line, for it has hundreds of thousands; with :data:`_LONGEST` bytes in a line
    no operator's is cut.
    """
    rest = b""
    while more := stream.read(_AT_ONCE):
        given = rest + more
        end = given.rfind(b"\n") + 1 or max(0, len(given) - _LONGEST)
        yield given[:end]
        rest = given[end:]
    yield rest
