"""Reads what QNN's compiler says of the traffic of a graph, in the schematic that `profiling_level=optrace` leaves.

A schematic is text with some binary parts. Of each operator that the chip runs it has a line such as
``{"opid" : 0x4f33, "dram_read": 2048 , "dram_write": 0 , "vtcm_read": 0 , "vtcm_write": 2048, "is_dma": 1}``
(QAIRT 2.51; the form is not documented).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_LINE = re.compile(rb'"dram_read": *(\d+) *, *"dram_write": *(\d+) *,')
_LONGEST = 1 << 16


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
        while line := stream.readline(_LONGEST):
            if match := _LINE.search(line):
                found += 1
                read, write = read + int(match[1]), write + int(match[2])
    return Traffic(read, write) if found else None
