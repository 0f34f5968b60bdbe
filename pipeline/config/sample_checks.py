"""What must hold of calibration and verification samples together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.config.file import (
    ChatReader,
    NpzReader,
    PythonReader,
    Reader,
    RecordReader,
    TextReader,
    Verification,
)
from pipeline.config.yaml.problems import Keys, Problems
from pipeline.config.yaml.tree import Node, place_of


def check_held_out(fields: Mapping[str, Any], node: Node, problems: Problems) -> None:
    """Accuracy on samples that the ranges were taken from says little about any others."""
    calibration: Reader | None = fields.get("calibration")
    verification: Verification | None = fields.get("verification")
    held_out = verification.samples if verification else None
    if calibration and held_out and _origin(calibration) == _origin(held_out):
        keys: Keys = ("verification", "samples")
        expected = "other samples, held out from calibration"
        problems.add(place_of(node, keys), keys, "the same samples as calibration", expected=expected)


def _origin(reader: Reader) -> tuple[object, ...]:
    """What decides which samples there are. A function may make any of its file; the other readers take its lines."""
    match reader:
        case PythonReader(run=run, file=file):
            return run, file
        case NpzReader(folder=folder):
            return (folder,)
        case TextReader(file=file) | RecordReader(file=file) | ChatReader(file=file):
            return (file,)
