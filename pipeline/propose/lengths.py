"""The lengths that a plan of buckets is made for: of a calibration set that was read, or of a file of numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.contracts import ingest, samples
from pipeline.contracts.values import TensorSpec
from pipeline.errors import ConfigError, StoreError
from pipeline.graph.shapes.buckets import axis_lengths
from pipeline.inputs.samples.sample_set import INDEX
from pipeline.model import Manifest
from pipeline.store.store import Store

MOST_LENGTHS = 10_000_000
_LARGEST = 2**31 - 1


@dataclass(frozen=True)
class KnownLengths:
    """One tuple a sample, a length for each of `axes`; `calls` is how often a sample runs each component.

    `cut` samples were longer than the largest bucket, and count with its length.
    """

    axes: tuple[str, ...]
    samples: Sequence[tuple[int, ...]]
    calls: Mapping[str, float]
    origin: str
    cut: int = 0


def of_calibration(
    axes: tuple[str, ...], manifest: Manifest, ingested: Mapping[str, ingest.Facts], store: Store
) -> KnownLengths:
    """Those of the samples that a samples step made: of each the longest of its calls, on each axis.

    Raises:
        StoreError: a file of them is not in the store any more.
    """
    facts = samples.Facts.from_json(manifest.facts)
    paths = {name: store.object_path(entry.sha256) for name, entry in manifest.files.items()}
    try:
        listed = json.loads(paths[INDEX].read_text("utf-8"))["samples"]
        found = []
        for entry in listed:
            longest = dict.fromkeys(axes, 1)
            for file in entry["calls"]:
                inputs = ingested[file.split("/")[0]].inputs
                for axis, length in _lengths(paths[file], inputs).items():
                    if axis in longest:
                        longest[axis] = max(longest[axis], length)
            found.append(tuple(longest[axis] for axis in axes))
    except (OSError, KeyError, ValueError) as error:
        raise StoreError(
            "the samples that were read can't be found in the store",
            why=f"{type(error).__name__}: {error}",
            remedy="run 'doit fsck', then the same command again",
        ) from error
    calls = {component: count / facts.samples for component, count in facts.count.items()}
    return KnownLengths(axes, found, calls, f"the {facts.samples} samples of the calibration set", facts.cut)


def _lengths(path: Path, inputs: Sequence[TensorSpec]) -> dict[str, int]:
    with np.load(path, allow_pickle=False) as archive:
        return axis_lengths({name: archive[name] for name in archive.files}, inputs)


def of_file(axes: tuple[str, ...], path: Path, components: Sequence[str]) -> KnownLengths:
    """Those of a file of numbers: a line a sample, of as many whole numbers as there are axes.

    Raises:
        ConfigError: the file can't be read, or a line is none of numbers.
    """
    found: list[tuple[int, ...]] = []
    try:
        with path.open(encoding="utf-8-sig") as stream:
            for number, line in enumerate(stream, 1):
                if line.strip():
                    found.append(_numbers(line, axes, f"{path}:{number}"))
                if len(found) > MOST_LENGTHS:
                    raise _wrong(f"{path} has more than {MOST_LENGTHS} lines", "--lengths", "take a part of them")
    except (OSError, UnicodeDecodeError) as error:
        why = str(getattr(error, "strerror", "") or error)
        raise ConfigError(
            f"the lengths in {path} can't be read", where="--lengths", why=why, remedy="name a file of numbers"
        ) from error
    if not found:
        raise _wrong(f"{path} holds no lengths", "--lengths", "write a length a line")
    return KnownLengths(axes, found, dict.fromkeys(components, 1.0), f"{len(found)} lengths of {path.name}")


def _numbers(line: str, axes: tuple[str, ...], where: str) -> tuple[int, ...]:
    parts = [part for part in re.split(r"[\s,;]+", line.strip()) if part]
    if len(parts) != len(axes) or not all(part.isascii() and part.isdigit() for part in parts):
        expected = f"{len(axes)} whole numbers, of {' and '.join(axes)}" if len(axes) > 1 else "a whole number"
        raise _wrong(f"{line.strip()[:40]!r} is not {expected}", where, f"write {expected} on each line")
    numbers = tuple(map(int, parts))
    if not all(0 < number <= _LARGEST for number in numbers):
        raise _wrong(f"{line.strip()[:40]!r} is no length", where, f"lengths are from 1 to {_LARGEST}")
    return numbers


def _wrong(what: str, where: str, remedy: str) -> ConfigError:
    return ConfigError(what, where=where, remedy=remedy)
