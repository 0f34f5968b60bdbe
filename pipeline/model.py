"""Plain types shared by all layers. Imports nothing of ours and nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any, TypeVar

from pipeline.frozen import dataclass

_T = TypeVar("_T")
Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


@dataclass(frozen=True)
class FileEntry:
    """One file of a step's output, by content."""

    sha256: str
    bytes: int


PARTS = "parts"
"""The fact under which a step that made something for several buckets says what is whose."""


@dataclass(frozen=True)
class Manifest:
    """What a step produced: files by relative POSIX path, and facts. Holds no time, host or absolute path.

    A step that made something for several buckets has the fact ``"parts": {bucket: {"files": {name: file},
    "facts": {...}}}``: each bucket's files, under the names that its readers know them by, and what is true of it.
    """

    stage: str
    key: str
    files: Mapping[str, FileEntry]
    facts: Mapping[str, Json]
    _read: dict[object, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def read(self, decode: Callable[[Mapping[str, Json]], _T]) -> _T:
        """The facts as `decode` understands them, e.g. `ingest.Facts.from_json`: decoded once, however often read.

        Raises what `decode` raises.
        """
        found: _T
        if decode in self._read:
            found = self._read[decode]
        else:
            found = self._read[decode] = decode(self.facts)
        return found

    def part(self, bucket: str) -> Manifest | None:
        """This manifest narrowed to one bucket, None if it has no such part. Of other buckets nothing is left in it."""
        parts = self.facts.get(PARTS)
        part = parts.get(bucket) if isinstance(parts, dict) else None
        if not isinstance(part, dict):
            return None
        files, facts = part["files"], part["facts"]
        assert isinstance(files, dict)
        assert isinstance(facts, dict)
        return replace(self, files={name: self.files[str(file)] for name, file in files.items()}, facts=facts)


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
