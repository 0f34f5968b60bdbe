"""release.json, as release.schema.json describes it: what a runtime needs to choose and run, what an auditor asks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pipeline.errors import ConfigError
from pipeline.model import Json
from pipeline.release.archive import Member
from pipeline.release.dims import Dim

SCHEMA_VERSION = 1
INDEX = "release.json"
PROVENANCE = "provenance.json"
SIGNATURE = "release.dsse.json"
SBOM = "sbom.cdx.json"
UNLISTED = frozenset({INDEX, PROVENANCE, SIGNATURE})
"""Files that release.json does not list: itself, and what is made of its digest."""

Bucket = Mapping[str, Any]
"""A bucket as a build's manifest.json has it."""


@dataclass(frozen=True)
class Part:
    """A folder of artifacts as it goes into an archive: under `prefix`, with what its manifest.json says."""

    prefix: str
    manifest: Mapping[str, Any]
    members: Mapping[str, Member]

    def path(self, name: str) -> str:
        """Where a file of the folder is in the archive."""
        return f"{self.prefix}/{name}"


def components_of(
    contexts: Sequence[Part], qdq: Part | None, declared: Mapping[str, Mapping[str, Json]], fixed: Mapping[str, int]
) -> dict[str, dict[str, Json]]:
    """The components, each with its inputs, outputs and buckets.

    `declared` has the facts of each component's ingest: inputs and outputs with the dims that the model names.

    Raises:
        ConfigError: how an input grows with the axes can't be told.
    """
    names = dict.fromkeys(name for part in contexts for name in part.manifest["components"])
    return {name: _component(name, contexts, qdq, declared[name], fixed) for name in names}


def targets_of(contexts: Iterable[Part]) -> list[Json]:
    """The targets, each with the oldest driver that loads what was compiled for it."""
    found: dict[str, Json] = {}
    for part in contexts:
        sdk = ".".join(str(part.manifest["tools"]["qairt"]).split(".")[:2])
        for target in part.manifest["targets"]:
            found[target["name"]] = {**target, "minimum_driver_sdk": sdk}
    return [*found.values()]


def listed(members: Mapping[str, Member]) -> dict[str, Json]:
    """The files of an archive with their digests."""
    return {
        name: {"sha256": member.sha256, "bytes": member.size}
        for name, member in sorted(members.items())
        if name not in UNLISTED
    }


def text_of(raw: Mapping[str, Json]) -> bytes:
    """A JSON file of a release: equal values are equal bytes."""
    return json.dumps(raw, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _component(
    name: str, contexts: Sequence[Part], qdq: Part | None, declared: Mapping[str, Json], fixed: Mapping[str, int]
) -> dict[str, Json]:
    built = [*_built(name, contexts)]
    example = built[0][1]
    inputs: list[Json] = []
    for at, given in enumerate(example["inputs"]):
        dims = [dim.of_input() for dim in _dims("inputs", at, built, declared, fixed)]
        if None in dims:
            raise _untold(name, given["name"], dims.index(None))
        padding = example["padding"].get(given["name"], 0)
        inputs.append({"name": given["name"], "dtype": given["dtype"], "dims": dims, "padding": padding})
    outputs: list[Json] = []
    for at, made in enumerate(example["outputs"]):
        rules: list[Json] = [dim.of_output() for dim in _dims("outputs", at, built, declared, fixed)]
        outputs.append({"name": made["name"], "dtype": made["dtype"], "dims": rules})
    buckets: dict[str, dict[str, Any]] = {}
    for part, bucket in built:
        entry = buckets.setdefault(
            json.dumps(bucket["axes"]),
            {
                "axes": bucket["axes"],
                "contexts": {},
                "qdq": _qdq(name, bucket["axes"], qdq),
                "verification": {"cpu": bucket["verification"]["cpu"]},
            },
        )
        for target in part.manifest["targets"]:
            entry["contexts"][target["name"]] = _context(name, target["name"], part, bucket)
    return {"inputs": inputs, "outputs": outputs, "buckets": [*buckets.values()]}


def _untold(component: str, name: str, position: int) -> ConfigError:
    return ConfigError(
        f"how long input {name!r} has to be in a bucket can't be told, so nobody could pad it",
        where=f"component {component}, dim {position} of the input",
        why="it is no multiple of one length axis, and what the model declares does not say it either",
        remedy="build more buckets, of which the rule may follow, or export the model with names for its axes",
    )


def _built(component: str, contexts: Sequence[Part]) -> Iterator[tuple[Part, Bucket]]:
    for part in contexts:
        if component in part.manifest["components"]:
            for bucket in part.manifest["components"][component]["buckets"]:
                yield part, bucket


def _context(component: str, target: str, part: Part, bucket: Bucket) -> dict[str, Json]:
    emulated = bucket["verification"]["emulator"] or {}
    return {
        "model": part.path(bucket["context_model"]),
        "binaries": [part.path(binary) for binary in bucket["binaries"]],
        "packing": part.manifest["components"][component]["packing"],
        "compatibility": bucket["compatibility"],
        "partitions": bucket["partitions"],
        "cpu_nodes": len(bucket["cpu_nodes"]),
        "quantization": bucket["quantization"]["scheme"],
        "verification": emulated.get(target),
    }


def _qdq(component: str, axes: Mapping[str, int], qdq: Part | None) -> Json:
    found = qdq.manifest["components"].get(component, {"buckets": []})["buckets"] if qdq else []
    for bucket in found:
        if qdq and bucket["axes"] == axes:
            files = sorted({*bucket["files"]} & {*qdq.members} - {bucket["model"]})
            return {"model": qdq.path(bucket["model"]), "files": [qdq.path(file) for file in files]}
    return None


def _dims(
    kind: str,
    position: int,
    built: Sequence[tuple[Part, Bucket]],
    declared: Mapping[str, Json],
    fixed: Mapping[str, int],
) -> list[Dim]:
    """The dims of one of the inputs or outputs."""
    values = [bucket[kind][position] for _, bucket in built]
    axes = [bucket["axes"] for _, bucket in built]
    said = {value["name"]: value["shape"] for value in cast("list[dict[str, Any]]", declared[kind])}
    rank = len(values[0]["shape"])
    names = said.get(values[0]["name"], [])
    names = names if len(names) == rank else [None] * rank
    return [Dim(names[at], [value["shape"][at] for value in values], axes, fixed) for at in range(rank)]
