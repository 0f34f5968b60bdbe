"""Makes release.json: what a runtime needs to choose and run, and what auditors ask. Its form: release.schema.json.

Works out how shapes depend on length axes: what size to pad inputs to, and where to cut outputs.

The model names an input's dims, or gives expressions of its axes. For an output's dims it often gives neither. Their
rule is then inferred from the shapes in the buckets, if exactly one rule fits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipeline.contracts import ingest
from pipeline.contracts.values import TensorSpec
from pipeline.errors import ConfigError
from pipeline.frozen import dataclass
from pipeline.model import Json
from pipeline.release.archives.archive import Member
from pipeline.release.archives.engine_files import MEMBER

SCHEMA_VERSION = 1
INDEX = "release.json"
PROVENANCE = "provenance.json"
SIGNATURE = "release.dsse.json"
SBOM = "sbom.cdx.json"
RANGE = "range"
"""The member of an input that holds ids, in manifest.json and release.json: the least and the most that it may be."""
SEEN = "seen"
"""The member of an input of floats: the least and the most that calibration saw, in float16 what that holds."""
NAN = "nan"
"""The member of an input of floats: whether the model itself replaces a NaN."""
UNLISTED = frozenset({INDEX, PROVENANCE, SIGNATURE})
"""Files that release.json can't list: itself, and those that hold its digest."""

Bucket = Mapping[str, Any]
"""A bucket as JSON: from manifest.json while release.json is made, from release.json afterwards."""


@dataclass(frozen=True)
class Part:
    """A folder of artifacts that goes into an archive under `prefix`; `manifest` is its parsed manifest.json."""

    prefix: str
    manifest: Mapping[str, Any]
    members: Mapping[str, Member]

    def path(self, name: str) -> str:
        """The name that a file of the folder has in the archive."""
        return f"{self.prefix}/{name}"


def components_of(
    contexts: Sequence[Part], qdq: Part | None, declared: Mapping[str, ingest.Facts], fixed: Mapping[str, int]
) -> dict[str, dict[str, Json]]:
    """`components` of release.json: each component's inputs, outputs and buckets.

    `declared` has the facts of each component's ingest: inputs and outputs with the dims that the model names.

    Raises:
        ConfigError: neither model nor buckets tell how a dim of an input grows with the axes.
    """
    names = dict.fromkeys(name for part in contexts for name in part.manifest["components"])
    return {name: _component(name, contexts, qdq, declared[name], fixed) for name in names}


def targets_of(contexts: Iterable[Part]) -> list[Json]:
    """`targets` of release.json, each with the oldest driver that loads its contexts."""
    found: dict[str, Json] = {}
    for part in contexts:
        sdk = ".".join(str(part.manifest["tools"]["qairt"]).split(".")[:2])
        for target in part.manifest["targets"]:
            found[target["name"]] = {**target, "minimum_driver_sdk": sdk}
    return [*found.values()]


def buckets_of(components: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Bucket]]:
    """The buckets that release.json has under `components`, each as `<component>/<bucket>` and its JSON."""
    for component, listed in components.items():
        for bucket in listed["buckets"]:
            yield f"{component}/{'x'.join(map(str, bucket['axes'].values())) or 'all'}", bucket


def listed(members: Mapping[str, Member]) -> dict[str, Json]:
    """`files` of release.json: the digest and the size of each member."""
    return {
        name: {"sha256": member.sha256, "bytes": member.size}
        for name, member in sorted(members.items())
        if name not in UNLISTED
    }


def text_of(raw: Mapping[str, Json]) -> bytes:
    """A value as the bytes of its JSON; equal values give equal bytes."""
    return json.dumps(raw, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _component(
    name: str, contexts: Sequence[Part], qdq: Part | None, declared: ingest.Facts, fixed: Mapping[str, int]
) -> dict[str, Json]:
    built = [*_built(name, contexts)]
    example = built[0][1]
    inputs: list[Json] = []
    for at, given in enumerate(example["inputs"]):
        dims = [dim.of_input() for dim in _dims("inputs", at, built, declared.inputs, fixed)]
        if None in dims:
            raise _untold(name, given["name"], dims.index(None))
        padding = example["padding"].get(given["name"], 0)
        ranges = [bucket["inputs"][at][RANGE] for _, bucket in built if RANGE in bucket["inputs"][at]]
        domain = _floats(at, built)
        if ranges:
            domain[RANGE] = [max(least for least, _ in ranges), ranges[0][1]]
        inputs.append({"name": given["name"], "dtype": given["dtype"], "dims": dims, "padding": padding, **domain})
    outputs: list[Json] = []
    for at, made in enumerate(example["outputs"]):
        rules: list[Json] = [dim.of_output() for dim in _dims("outputs", at, built, declared.outputs, fixed)]
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
    listed: list[Json] = [*buckets.values()]
    return {
        "inputs": inputs,
        **constants_of(declared),
        "outputs": outputs,
        **_engines(name, contexts),
        "buckets": listed,
    }


def _floats(at: int, built: Sequence[tuple[Part, Bucket]]) -> dict[str, Json]:
    """The domain of an input of floats in all contexts; empty for another input."""
    found = [bucket["inputs"][at] for _, bucket in built if SEEN in bucket["inputs"][at]]
    if not found:
        return {}
    low, high = max(each[SEEN][0] for each in found), min(each[SEEN][1] for each in found)
    return {SEEN: [low, high], NAN: all(each[NAN] for each in found)}


def _engines(name: str, contexts: Sequence[Part]) -> dict[str, Json]:
    """The member `engines` of a component: what the manifests say, by target, with paths in the archive."""
    found: dict[str, Json] = {}
    for part in contexts:
        said = part.manifest["components"].get(name, {}).get(MEMBER)
        for target in part.manifest["targets"] if said else ():
            told = {engine: facts for engine, facts in said.items() if engine != "files"}
            for engine, facts in told.items():
                config = facts["config"] and part.path(facts["config"])
                told[engine] = {**facts, "config": config}
            found[target["name"]] = told
    return {MEMBER: found} if found else {}


def constants_of(declared: ingest.Facts) -> dict[str, Json]:
    """The member `constants` of a component; empty if it has no constants."""
    constants: dict[str, Json] = {name: replace(each, axes=None).to_json() for name, each in declared.constants.items()}
    return {"constants": constants} if constants else {}


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
        **({"exports": _exports(part, bucket)} if "exports" in bucket else {}),
    }


def _exports(part: Part, bucket: Bucket) -> dict[str, Json]:
    """The files for other engines that were made from the context, by kind."""
    return {kind: {**made, "file": part.path(made["file"])} for kind, made in bucket["exports"].items()}


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
    declared: Sequence[TensorSpec],
    fixed: Mapping[str, int],
) -> list[Dim]:
    """The dims of one of the inputs or outputs."""
    values = [bucket[kind][position] for _, bucket in built]
    axes = [bucket["axes"] for _, bucket in built]
    said = {value.name: value.shape for value in declared}
    rank = len(values[0]["shape"])
    names = said.get(values[0]["name"], ())
    names = names if len(names) == rank else (None,) * rank
    return [Dim(names[at], [value["shape"][at] for value in values], axes, fixed) for at in range(rank)]


UNKNOWN: Mapping[str, Json] = {"unknown": True}
_MULTIPLES = (2, 3, 5)
"""Multiples of a bucket's length at which an expression is evaluated."""

Axes = Mapping[str, int]


@dataclass(frozen=True)
class Dim:
    """One dim of an input or output: what the model declares, and its size in each bucket.

    `fixed` has the axes with the same value in all buckets.
    """

    declared: Json
    sizes: Sequence[int]
    buckets: Sequence[Axes]
    fixed: Axes

    def of_input(self) -> Json:
        """A size, the name of an axis, ``{"axis", "times", "offset"}``, or None if no rule is certain."""
        rule = self.of_output()
        if "size" in rule:
            return rule["size"]
        if not self._named() and self._is_constant():
            return self.sizes[0]  # no axis makes it longer
        return (rule["axis"] if {*rule} == {"axis"} else rule) if "axis" in rule else None

    def of_output(self) -> dict[str, Json]:
        """``{"size": n}``, ``{"axis": name}``, ``{"axis", "times", "offset"}`` or ``{"unknown": True}``."""
        if isinstance(self.declared, int) and {*self.sizes} == {self.declared}:
            return {"size": self.declared}
        axes = [*self.buckets[0]]
        named = self._named()
        if not named and self._is_constant():
            return {"size": self.sizes[0]} if all(map(self._varies, axes)) else {**UNKNOWN}
        if len(named) > 1 and self._is_constant() and all(map(self._varies, named)):
            return {"size": self.sizes[0]}  # they make up for each other, as a window and the cache before it do
        rules = {axis: rule for axis in named if (rule := self._rule(axis, declared=True))}
        if len(rules) != 1:  # the sizes contradict the declaration, or it is no expression of one axis
            rules = {axis: rule for axis in axes if (rule := self._rule(axis, declared=False))}
        if len(rules) != 1:  # several axes that grow together would fit
            return {**UNKNOWN}
        ((axis, (times, offset)),) = rules.items()
        return {"axis": axis} if (times, offset) == (1, 0) else {"axis": axis, "times": times, "offset": offset}

    def _is_constant(self) -> bool:
        return len({*self.sizes}) == 1

    def _varies(self, axis: str) -> bool:
        return len({bucket[axis] for bucket in self.buckets}) > 1

    def _named(self) -> list[str]:
        """The axes of the buckets that the declaration names."""
        from pipeline.graph.shapes.axes import axis_names  # imports onnx

        found = axis_names(self.declared) if isinstance(self.declared, str) else ()
        return [axis for axis in found if axis in self.buckets[0]]

    def _rule(self, axis: str, *, declared: bool) -> tuple[int, int] | None:
        """`times` and `offset` with which every size is ``times * length + offset``; None if they are uncertain."""
        points = {*zip((bucket[axis] for bucket in self.buckets), self.sizes, strict=True)}
        if declared:
            points |= self._evaluated(axis)
        (first, low), *others = sorted(points)
        if not others or len({length for length, _ in points}) != len(points):
            return None
        second, high = others[0]
        times, rest = divmod(high - low, second - first)
        offset = low - times * first
        if rest or times < 1 or any(times * length + offset != size for length, size in points):
            return None
        return (times, offset) if len(points) >= (2 if offset == 0 else 3) else None

    def _evaluated(self, axis: str) -> set[tuple[int, int]]:
        """Lengths beyond those of the buckets, each with the dim's size there by the declaration."""
        from pipeline.graph.shapes.axes import DimError, dim_size

        found = set()
        for multiple in _MULTIPLES:
            length = multiple * self.buckets[0][axis]
            try:
                found.add((length, dim_size(str(self.declared), {**self.fixed, **self.buckets[0], axis: length})))
            except DimError:
                continue
        return found
