"""Reads a calibration set that is lines of text."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.contracts.samples import TextFields
from pipeline.errors import CalibrationError
from pipeline.inputs.samples.request import Sample
from pipeline.plain_text import did_you_mean

LONGEST_LINE = 1 << 20
"""The most bytes of a line; a model takes some thousands at most."""


@dataclass(frozen=True)
class TextLine:
    """A sample that is text, with the second text of a pair if there is one, and other values of its line by name."""

    sample: Sample
    text: str
    pair: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)


def read_texts(path: Path, fields: TextFields | None, limit: int | None) -> Iterator[TextLine]:
    """The first `limit` samples of a file of lines, or of a `.jsonl` file with one JSON object a line.

    `fields` says which fields or columns hold what. The `text` of a sample that is a pair has both, with a tab between.

    Raises:
        CalibrationError: as :func:`read_lines`, or a line lacks a field, or is no JSON object.
    """
    fields = fields or TextFields()
    if path.suffix.lower() == ".jsonl":
        return itertools.islice(_objects(path, fields), limit)
    if fields.columns:
        return itertools.islice(_columns(path, fields.columns), limit)
    return (TextLine(sample, sample.text or "") for sample in read_lines(path, limit))


def _objects(path: Path, fields: TextFields) -> Iterator[TextLine]:
    for index, (where, line) in enumerate(_text_lines(path)):
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _not_an_object(path, where, str(error)) from None
        if not isinstance(found, dict):
            raise _not_an_object(path, where, f"it is {line[:60]!r}")
        texts = [_field(found, name, where) for name in (fields.text, fields.pair) if name is not None]
        label = found.get(fields.label or "label")
        known = {fields.text, fields.pair, fields.label or "label"}
        rest = {name: value for name, value in found.items() if name not in known}
        yield _line(index, where, texts, None if label is None else str(label), rest)


def _columns(path: Path, columns: tuple[str, ...]) -> Iterator[TextLine]:
    for index, (where, line) in enumerate(_text_lines(path)):
        parts = line.split("\t")
        if len(parts) != len(columns):
            raise CalibrationError(
                f"a line of {path.name} has {len(parts)} columns",
                where=where,
                why=f"calibration.columns names {len(columns)}: {', '.join(columns)}; tabs are between them",
                remedy="correct the line, or calibration.columns",
            )
        found = dict(zip(columns, parts, strict=True))
        texts = [found[name] for name in ("text", "pair") if name in found]
        yield _line(index, where, texts, found.get("label"), {})


def _line(index: int, where: str, texts: list[str], label: str | None, values: Mapping[str, Any]) -> TextLine:
    sample = Sample(index, where, _written("\t".join(texts)), None if label is None else _written(label))
    return TextLine(sample, texts[0], texts[1] if len(texts) > 1 else None, values)


def _written(text: str) -> str:
    """A text that can be written: halves of characters, which JSON can hold and UTF-8 can't, become escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _field(found: Mapping[str, Any], name: str, where: str) -> str:
    text = found.get(name)
    if not isinstance(text, str) or not text.strip():
        said = (
            "is no text"
            if name in found and not isinstance(text, str)
            else "is empty"
            if name in found
            else "is not there"
        )
        raise CalibrationError(
            f"field {name!r} {said}{did_you_mean(name, found) if name not in found else ''}",
            where=where,
            why=f"the line has {', '.join(map(repr, found)) or 'no fields'}",
            remedy="correct the line, or say under 'calibration' which field is the 'text', and which the 'pair'",
        )
    return _written(text)


def _not_an_object(path: Path, where: str, why: str) -> CalibrationError:
    return CalibrationError(
        f"a line of {path.name} is no JSON object",
        where=where,
        why=why,
        remedy='write one sample a line, as in {"text": "Who was there?", "label": "question"}',
    )


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
    for index, (where, line) in enumerate(_text_lines(path)):
        label, tab, text = line.partition("\t") if labelled else ("", "", line)
        if labelled and not (tab and text.strip()):
            raise CalibrationError(
                "a line of a .tsv file has no text" if tab else "a line of a .tsv file has no tab",
                where=where,
                why=f"each line is label<TAB>text, this one is {line[:60]!r}",
                remedy="correct the line, name the file .txt if it has no labels, or say what its columns are",
            )
        yield Sample(index, where, text, label if labelled else None)


def _text_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Each line that is not blank, after its place as ``file:line``."""
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
        yield where, line


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
