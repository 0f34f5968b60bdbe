"""A step and the outputs it stands on, made definite: parameters, input manifests, file digests, key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from pipeline import source
from pipeline.config import HubSource, LocalSource, ModelConfig, TextReader
from pipeline.errors import ConfigError
from pipeline.keys import step_key, tool_versions
from pipeline.model import PARTS, Json, Manifest
from pipeline.pins import pinned_revision
from pipeline.plan import Step
from pipeline.storage.manifests import read_manifest
from pipeline.suggest import did_you_mean
from pipeline.workspace import Workspace


@dataclass(frozen=True)
class Resolved:
    """All that decides what a step produces, and its key."""

    step: Step
    params: Mapping[str, Json]
    inputs: Mapping[str, Manifest]
    files: Mapping[str, Path]
    key: str


def resolve(step: Step, workspace: Workspace, outputs: Mapping[str, Manifest] | None = None) -> Resolved | None:
    """The step made definite, or None while something it needs is not there yet (an upstream step, a pin).

    It stands on what the steps before it produced last, or on `outputs`, by step id, if they are given.
    """
    upstream = {
        name: read_manifest(workspace.current(name)) if outputs is None else outputs.get(name) for name in step.after
    }
    if any(manifest is None for manifest in upstream.values()):
        return None
    manifests = cast("dict[str, Manifest]", upstream)
    axes = {component: _axes(manifests[ingest]) for component, ingest in step.ingests.items()}
    files = dict(step.files) | dict(step.scripts)
    params = dict(step.params)
    if step.stage == "fetch":
        revision = _revision(step.config, workspace)
        if revision is None:
            return None
        fetched, files = _fetch(step.config, revision, workspace)
        params |= fetched
    elif axes:
        check_axes(step.config, axes)  # whichever of the steps after ingest comes first
    params |= _bucket_params(step, axes)

    inputs = _inputs(step, manifests, axes)
    if inputs is None:
        return None
    digests = {role: workspace.memo.sha256(_readable(path, role, step)) for role, path in files.items()}
    for role, script in step.scripts.items():
        digests[role] = workspace.code.script(script, workspace.root)
    key = step_key(
        step.stage,
        code=workspace.code.stage(step.stage),
        params=params,
        inputs=inputs,
        files=digests,
        tools=tool_versions(step.stage),
    )
    return Resolved(step, params, inputs, files, key)


def _inputs(
    step: Step, manifests: Mapping[str, Manifest], axes: Mapping[str, Sequence[str]]
) -> dict[str, Manifest] | None:
    """Input manifests by role, narrowed to the parts that the step reads; None while one lacks such a part.

    A step that made nothing for any bucket is no input: the form of binary that it makes was not chosen.
    """
    inputs: dict[str, Manifest] = {}
    for given in step.inputs:
        role, manifest = given.role, manifests[given.step]
        if given.bucket is not None and step.component:
            role = role.format(bucket=given.bucket.on(axes[step.component]).name)
        if given.part is not None and step.component:
            if manifest.facts.get(PARTS) == {}:
                continue
            part = manifest.part(given.part.on(axes[step.component]).name)
            if part is None:  # it was made for other buckets
                return None
            manifest = part
        if given.facts:
            manifest = replace(manifest, files={}, facts={name: manifest.facts[name] for name in given.facts})
        inputs[role] = manifest
    return inputs


def check_axes(config: ModelConfig, available: Mapping[str, Sequence[str]]) -> None:
    """Raise ConfigError when the config names an axis that no component of the model has."""
    known = sorted({axis for axes in available.values() for axis in axes})
    bucketed = [axis for bucket in config.buckets for axis in bucket.axes]
    for axis in dict.fromkeys((*config.fixed, *bucketed)):
        if axis not in known:
            raise ConfigError(
                f"no component of {config.name} has an axis named '{axis}'{did_you_mean(axis, known)}",
                where=config.places.get("fixed" if axis in config.fixed else "buckets", config.path.name),
                why=f"the models' inputs have these axes: {', '.join(known) or 'none'}",
                remedy="use the name that the ONNX file gives the axis",
            )


def fetched_files(config: ModelConfig) -> list[str]:
    """Names of the source files a model needs, without the external data that its ONNX files point to."""
    named = [component.file for component in config.components.values()]
    readers = (config.calibration, config.verification.samples)
    named += [reader.tokenizer for reader in readers if isinstance(reader, TextReader)]
    released = (*config.release.files, *config.release.licenses) if config.release else ()
    return list(dict.fromkeys((*named, *config.files, *released)))


def _revision(config: ModelConfig, workspace: Workspace) -> str | None:
    if isinstance(config.source, LocalSource):
        return ""
    return pinned_revision(config.source.hub, config.source.revision, workspace.pins)


def _fetch(config: ModelConfig, revision: str, workspace: Workspace) -> tuple[dict[str, Json], dict[str, Path]]:
    names = fetched_files(config)
    if isinstance(config.source, HubSource):
        hub: dict[str, Json] = {"hub": config.source.hub, "revision": revision}
        return {"source": hub, "files": [*names]}, {}
    files = source.local_files(config.source.path, names, workspace.memo)
    return {"source": {"path": None}, "files": [*names]}, files


def _axes(ingest: Manifest) -> list[str]:
    axes = ingest.facts["axes"]
    assert isinstance(axes, dict)
    return list(axes)


def _bucket_params(step: Step, axes: Mapping[str, Sequence[str]]) -> dict[str, Json]:
    config = step.config
    if step.stage == "samples":
        fixed: dict[str, Json] = {component: _fixed(config, have) for component, have in axes.items()}
        return {"buckets": {component: _buckets(config, have) for component, have in axes.items()}, "fixed": fixed}
    if step.component and step.bucket is None and step.stage != "ingest":
        return {"buckets": _buckets(config, axes[step.component])}
    if step.bucket is None or step.component is None:
        return {}
    have = axes[step.component]
    bucket = step.bucket.on(have)
    if step.stage == "context":
        return {"buckets": {bucket.name: dict(bucket.axes)}}
    params: dict[str, Json] = {"bucket": bucket.name, "axes": dict(bucket.axes)}
    if step.stage == "shape":
        params["fixed"] = _fixed(config, have)
    if step.stage in ("verify", "emulate", "blame", "probe"):
        params["buckets"] = _buckets(config, have)
    return params


def _buckets(config: ModelConfig, have: Sequence[str]) -> Json:
    return {bucket.name: dict(bucket.axes) for bucket in config.buckets_on(have)}


def _fixed(config: ModelConfig, have: Sequence[str]) -> Json:
    return {axis: value for axis, value in config.fixed.items() if axis in have}


def _readable(path: Path, role: str, step: Step) -> Path:
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ConfigError(
            f"{path.name} is a device, a pipe or a socket",
            where=f"{_place_named(role, step)}, for {step.id}",
            why=f"{path} has no content of its own that a build could stand on",
            remedy="name a file or a folder",
        )
    if not path.exists():
        beside = (entry.name for entry in path.parent.iterdir()) if path.parent.is_dir() else ()
        raise ConfigError(
            f"{path.name} does not exist{did_you_mean(path.name, beside)}",
            where=f"{_place_named(role, step)}, for {step.id}",
            why=f"looked for {path}",
            remedy="create it, or correct the path in the config",
        )
    return path


def _place_named(role: str, step: Step) -> str:
    """Where the config names the file that has this role in a step."""
    config = step.config
    if step.stage in ("verify", "emulate"):
        names = [f"components.{step.component}.score", "verification.score"]
    else:
        reader = "calibration" if step.name == f"{config.name}/calibration" else "verification.samples"
        names = [f"{reader}.run"] if role == "code" else [f"{reader}.file", f"{reader}.folder"]
    return next((config.places[name] for name in names if name in config.places), config.path.name)
