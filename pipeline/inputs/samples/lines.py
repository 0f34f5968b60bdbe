"""A calibration set that is lines of text."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from pipeline.errors import CalibrationError
from pipeline.inputs.samples.request import Sample

LONGEST_LINE = 1 << 20
"""Bytes of a line; a model takes some thousands at most."""


def read_lines(path: Path, limit: int | None = None) -> Iterator[Sample]:
    r"""The first `limit` lines of a UTF-8 file that are not blank, each named ``file:line``.

    In a `.tsv` file a line is ``label<TAB>text``. A line ends at ``\n`` or ``\r\n`` and nowhere else; nothing in it is
    special, a ``#`` neither. A byte order mark is dropped.

    Raises:
        CalibrationError: the file can't be read, is not UTF-8 text, a line is too long, or a `.tsv` line has no tab or
            no text.
    """
    return itertools.islice(_lines(path), limit)


def _lines(path: Path) -> Iterator[Sample]:
    labelled = path.suffix.lower() == ".tsv"
    index = 0
    for number, raw in enumerate(_raw_lines(path), 1):
        where = f"{path.name}:{number}"
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise CalibrationError(
                f"{path.name} is not UTF-8 text", where=where, why=str(error), remedy="save the file as UTF-8"
            ) from None
        line = line.removesuffix("\r")
        if "\0" in line or "\r" in line:
            raise CalibrationError(
                f"{path.name} is not lines of text",
                where=where,
                why="it has a NUL byte" if "\0" in line else "it has a carriage return within a line",
                remedy="save the file as UTF-8 text whose lines end in a line feed",
            )
        if not line.strip():
            continue
        label, tab, text = line.partition("\t") if labelled else ("", "", line)
        if labelled and not (tab and text.strip()):
            raise CalibrationError(
                "a line of a .tsv file has no text" if tab else "a line of a .tsv file has no tab",
                where=where,
                why=f"each line is label<TAB>text, this one is {line[:60]!r}",
                remedy="correct the line, or name the file .txt if it has no labels",
            )
        yield Sample(index, where, text, label if labelled else None)
        index += 1


def _raw_lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as stream:
            number = 0
            while raw := stream.readline(LONGEST_LINE + 2):
                number += 1
                line = raw.removesuffix(b"\n")
                if len(line) > LONGEST_LINE:
                    raise CalibrationError(
                        f"a line of {path.name} is too long",
                        where=f"{path.name}:{number}",
                        why=f"it has more than {LONGEST_LINE} bytes, and each line is one sample",
                        remedy="put each sample on a line of its own",
                    )
                yield line
    except OSError as error:
        raise CalibrationError(
            f"can't read {path.name}", why=error.strerror or str(error), remedy="name a file of text lines"
        ) from None
