"""Checks calibration and verification samples, each by themselves and together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config.file import Verification
from pipeline.config.readers import (
    AudioReader,
    ChatReader,
    HubData,
    ImagesReader,
    NpzReader,
    PythonReader,
    Reader,
    RecordReader,
    TextReader,
)
from pipeline.config.yaml.problems import Keys, Problems
from pipeline.config.yaml.tree import Node, place_of


def check_samples(fields: Mapping[str, Any], node: Node, problems: Problems) -> None:
    """Add a problem for wrong keys, and for verification on the samples of calibration, which would show little."""
    calibration: Reader | None = fields.get("calibration")
    verification: Verification | None = fields.get("verification")
    held_out = verification.samples if verification else None
    for reader, keys in ((calibration, ("calibration",)), (held_out, ("verification", "samples"))):
        if isinstance(reader, TextReader):
            _check_text(reader, keys, node, problems)
    if calibration and held_out and _origin(calibration) == _origin(held_out):
        found: Keys = ("verification", "samples")
        expected = "other samples, held out from calibration"
        problems.add(place_of(node, found), found, "the same samples as calibration", expected=expected)


def _check_text(reader: TextReader, keys: Keys, node: Node, problems: Problems) -> None:
    """Add a problem for keys that would be ignored: a second tokenizer, columns of a file that is no `.tsv`, and fields
    of one that is no `.jsonl`.
    """
    at: Keys
    if reader.vocabulary is not None and reader.tokenizer != TextReader.tokenizer:
        at = (*keys, "tokenizer")
        problems.add(place_of(node, at), at, "there is a vocabulary as well", expected="one of the two")
    file = reader.file.path if isinstance(reader.file, HubData) else reader.file.name
    suffix = Path(file).suffix.lower()
    if reader.columns and suffix != ".tsv":
        at = (*keys, "columns")
        problems.add(place_of(node, at), at, f"{Path(file).name} has none", expected="a .tsv file, with tabs between")
    elif reader.columns and "text" not in reader.columns:
        at = (*keys, "columns")
        problems.add(place_of(node, at), at, "no column is the text", expected="text among them, as in [text, pair]")
    named = {"text": reader.text != "text", "pair": reader.pair is not None, "label": reader.label is not None}
    for name, is_given in named.items():
        if is_given and suffix != ".jsonl":
            at = (*keys, name)
            what = f"{Path(file).name} has no fields"
            problems.add(place_of(node, at), at, what, expected="a .jsonl file, with one JSON object a line")


def _origin(reader: Reader) -> tuple[object, ...]:
    """What decides which samples a reader gives: its folder or file, and for a function the function, too."""
    match reader:
        case PythonReader(run=run, file=file):
            return run, file
        case NpzReader(folder=folder) | ImagesReader(folder=folder) | AudioReader(folder=folder):
            return (folder,)
        case TextReader(file=file) | RecordReader(file=file) | ChatReader(file=file):
            return (file,)
