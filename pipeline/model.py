"""Plain types shared by all layers. Imports nothing of ours and nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


@dataclass(frozen=True)
class FileEntry:
    """One file of a step's output, by content."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class Manifest:
    """What a step produced: files by relative POSIX path, and facts. Holds no time, host or absolute path."""

    stage: str
    key: str
    files: Mapping[str, FileEntry]
    facts: Mapping[str, Json]


@dataclass(frozen=True)
class StageInput:
    """The output of an upstream step as a stage sees it: a folder of read-only files, and the facts."""

    folder: Path
    files: Mapping[str, FileEntry]
    facts: Mapping[str, Json]


@dataclass(frozen=True)
class StageRequest:
    """All that a stage may look at. `out` is an empty folder that the stage fills."""

    step: str
    params: Mapping[str, Json]
    inputs: Mapping[str, StageInput]
    files: Mapping[str, Path]
    out: Path


@dataclass(frozen=True)
class StageResult:
    """Facts about what was written to `out`.

    `reused` names files of the output that are files of an input, unchanged: output path -> (role, path in that
    input). They are neither copied nor hashed again.
    """

    facts: Mapping[str, Json]
    reused: Mapping[str, tuple[str, str]] = field(default_factory=dict)
