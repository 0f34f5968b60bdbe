"""Resolves a step: its final parameters, the manifests of its inputs, the digests of its files, and its key.

Checks what a config asks of a language model as soon as ingest has read it, before any step that takes long.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from pipeline.config.load import LocalSource, ModelConfig
from pipeline.config.yaml.problems import dotted
from pipeline.contracts import fetch, ingest, precision, quantize, rewrite, samples, shape
from pipeline.contracts.codec import Contract, ContractError
from pipeline.contracts.measures import Measuring, OverBuckets
from pipeline.contracts.quantize import UNCHANGED
from pipeline.errors import ConfigError
from pipeline.frozen import dataclass
from pipeline.inputs import source
from pipeline.inputs.pins import pinned_revision
from pipeline.model import PARTS, Manifest
from pipeline.plain_text import did_you_mean
from pipeline.plan import climbing
from pipeline.plan.keys import ExtraError, reader_versions, step_key, tool_versions
from pipeline.plan.named_files import named_in_source, readable
from pipeline.plan.own_buckets import OwnBuckets
from pipeline.plan.steps import Input, Step
from pipeline.plan.workspace import Workspace
from pipeline.store.manifests import read_manifest


@dataclass(frozen=True)
class Resolved:
    """All that decides what a step produces, and its key."""

    step: Step
    params: Contract
    inputs: Mapping[str, Manifest]
    files: Mapping[str, Path]
    key: str
    climb_key: str = ""
    """The key of the climb of the component; empty for a step that no climb changes."""


def resolve(step: Step, workspace: Workspace, outputs: Mapping[str, Manifest] | None = None) -> Resolved | None:
    """Resolve a step; None while something that it needs is missing (the output of an upstream step, a pin).

    Its inputs are the last outputs of upstream steps, or `outputs`, by step id, if they are given.
    """
    upstream = {
        name: read_manifest(workspace.current(name)) if outputs is None else outputs.get(name) for name in step.after
    }
    manifests = {name: manifest for name, manifest in upstream.items() if manifest is not None}
    if len(manifests) < len(upstream):
        return None
    try:
        found = {name: manifests[id_].read(ingest.Facts.from_json) for name, id_ in step.ingests.items()}
        if step.in_float is not None and _came_out_in_float(step, manifests):
            # A component that came to float16 and one that the config wants in it have the same steps and keys.
            return resolve(step.in_float(step.id), workspace, outputs)
    except ContractError:  # an older version of ours left it
        return None
    buckets = {name: OwnBuckets.of(step.config, facts) for name, facts in found.items()}
    files = dict(step.files) | dict(step.scripts)
    params = step.params
    if isinstance(params, fetch.Params):
        revision = pinned_revision(step.asked.hub, step.asked.revision, workspace.pins) if step.asked else ""
        if revision is None:
            return None
        params, files = _fetch(step, params, revision, workspace)
    elif buckets:
        # Whichever of the steps after ingest comes first.
        check_axes(step.config, {name: own.axes for name, own in buckets.items()})
        check_constants(step.config, found)
        check_language(step.config, found)
        params = _on_own_axes(step, buckets)
    if isinstance(params, rewrite.Params) and step.component is not None and not found[step.component].layers:
        params = replace(params, in_float=None)  # so that the key is that of a component that comes to float16

    inputs = _inputs(step, manifests, buckets)
    if inputs is None:
        return None
    digests = {role: workspace.memo.sha256(readable(path, role, step, workspace)) for role, path in files.items()}
    for role, script in step.scripts.items():
        digests[role] = workspace.code.script(script, workspace.root)
    if isinstance(params, quantize.Params) and "precision" in inputs:
        # The step of an explicit scheme and that of the same scheme when it was searched for have one key.
        found_by_search = precision.Facts.from_json(inputs.pop("precision").facts)
        params = replace(params, scheme=found_by_search.quantization)
    resolved = Resolved(step, params, inputs, files, _key(step, params, inputs, digests, workspace))
    if step.climb is None or not isinstance(params, quantize.Params):
        return resolved
    judged = step.climb.samples
    climb_key = climbing.key(step.climb, resolved.key, _narrowed(manifests[judged.step], judged), workspace)
    climbed = climbing.climbed(climb_key, workspace)
    if climbed is None:
        return replace(resolved, climb_key=climb_key)
    params = replace(params, scheme=climbed.quantization)
    return Resolved(step, params, inputs, files, _key(step, params, inputs, digests, workspace), climb_key)


def _came_out_in_float(step: Step, manifests: Mapping[str, Manifest]) -> bool:
    """Whether the model that a step reads came out of quantize in float, which is the rewritten model unchanged."""
    quantized = (manifests[given.step] for given in step.inputs if given.step.startswith("quantize:"))
    return all(manifest.facts.get(UNCHANGED) is True for manifest in quantized)


def _key(
    step: Step,
    params: Contract,
    inputs: Mapping[str, Manifest],
    digests: Mapping[str, str],
    workspace: Workspace,
) -> str:
    return step_key(
        step.stage,
        code=workspace.code.stage(step.stage),
        params=params.to_json(),
        inputs=inputs,
        files=digests,
        tools={**tool_versions(step.stage), **_reader_tools(step, params)},
    )


def _reader_tools(step: Step, params: Contract) -> Mapping[str, str]:
    """Versions of what the samples of a step are read with, where that is a package of an extra."""
    if not isinstance(params, samples.Params):
        return {}
    try:
        return reader_versions(params.calibration.reader)
    except ExtraError as error:
        purpose = "calibration" if step.name.endswith("/calibration") else "verification.samples"
        raise ConfigError(
            f"the package {error.package} is not installed in this Python environment",
            where=step.config.place(f"{purpose}.reader"),
            why=f"reader {params.calibration.reader!r} needs it, and it comes with the extra '{error.extra}' alone",
            remedy=f"run 'uv sync --inexact --extra {error.extra}', then the same command again",
        ) from None


def _inputs(
    step: Step, manifests: Mapping[str, Manifest], buckets: Mapping[str, OwnBuckets]
) -> dict[str, Manifest] | None:
    """Input manifests by role, narrowed to the parts that the step reads; None while one lacks such a part.

    A step that made nothing for any bucket is left out: it makes a form of binary that was not chosen.
    """
    inputs: dict[str, Manifest] = {}
    for given in step.inputs:
        role, manifest = given.role, manifests[given.step]
        if given.bucket is not None and step.component:
            role = role.format(bucket=buckets[step.component].own(given.bucket).name)
        if given.part is not None and step.component:
            if manifest.facts.get(PARTS) == {}:
                continue
            part = manifest.part(buckets[step.component].own(given.part).name)
            if part is None:  # it was made for other buckets
                return None
            manifest = part
        inputs[role] = _narrowed(manifest, given)
    return inputs


def _narrowed(manifest: Manifest, given: Input) -> Manifest:
    """The manifest of a step, reduced to the facts and files that an input takes."""
    if given.facts is None:
        return manifest
    wanted = manifest.files if given.files is None else given.files
    files = {name: manifest.files[name] for name in wanted if name in manifest.files}
    facts = {name: manifest.facts[name] for name in given.facts.names() if name in manifest.facts}
    return replace(manifest, files=files, facts=facts)


def check_axes(config: ModelConfig, available: Mapping[str, Collection[str]]) -> None:
    """Raise ConfigError when the config names an axis that no component of the model has."""
    known = sorted({axis for axes in available.values() for axis in axes})
    bucketed = [axis for bucket in config.buckets for axis in bucket.axes]
    for axis in dict.fromkeys((*config.fixed, *bucketed)):
        if axis not in known:
            raise ConfigError(
                f"no component of {config.name} has an axis named '{axis}'{did_you_mean(axis, known)}",
                where=config.place("fixed" if axis in config.fixed else "buckets"),
                why=f"the models' inputs have these axes: {', '.join(known) or 'none'}",
                remedy="use the name that the ONNX file gives the axis",
            )


def check_constants(config: ModelConfig, facts: Mapping[str, ingest.Facts]) -> None:
    """Raise ConfigError when the config fixes an input that the model does not have, or one that has a length.

    `facts` are those of ingest.
    """
    known = {component: _inputs_of(found) for component, found in facts.items()}
    for component, names in known.items():
        for name in config.components[component].constants:
            own = dotted(("components", component, "constants", name))
            candidates = names if own in config.places else {*known[component]}.union(*known.values())
            if name not in candidates:
                who = component if own in config.places or len(known) == 1 else f"any component of {config.name}"
                raise ConfigError(
                    f"'{name}' is no input of {who}{did_you_mean(name, candidates)}",
                    where=config.place(own, dotted(("constants", name))),
                    why=f"the inputs are {', '.join(sorted(candidates)) or 'none'}",
                    remedy="use the name that the ONNX file gives the input, or take it out of 'constants'",
                )
        for name, constant in facts[component].constants.items():
            for axis in constant.axes or ():
                if any(axis in bucket.axes for bucket in config.buckets):
                    raise _fixed_along(axis, name, component, config)


def _fixed_along(axis: str, name: str, component: str, config: ModelConfig) -> ConfigError:
    own = dotted(("components", component, "constants", name))
    return ConfigError(
        f"'{name}' is fixed to a value along '{axis}', which has buckets",
        where=config.place(own if own in config.places else dotted(("constants", name))),
        why="what is shorter than a bucket is padded, and the model would not be told: a mask of ones calls it tokens",
        remedy=f"fix the axis, too, so that other lengths are refused (fixed: {{{axis}: …}} in place of its buckets),"
        " or take the input out of 'constants' and give samples in which it varies",
    )


def _inputs_of(found: ingest.Facts) -> set[str]:
    return {spec.name for spec in found.inputs} | {*found.constants}


def _fetch(
    step: Step, params: fetch.Params, revision: str, workspace: Workspace
) -> tuple[fetch.Params, dict[str, Path]]:
    names = params.files or tuple(named_in_source(step.config))
    if step.asked is not None:
        return replace(params, commit=fetch.Commit(step.asked.hub, revision), files=names), {}
    assert isinstance(step.config.source, LocalSource)
    return fetch.Params(None, names), source.local_files(step.config.source.path, names, workspace.memo)


def _on_own_axes(step: Step, buckets: Mapping[str, OwnBuckets]) -> Contract:
    """The step's parameters with the buckets of its component, or of each, in place of those of the config."""
    params = step.params
    if isinstance(params, samples.Params):
        named = {component: own.named for component, own in buckets.items()}
        return replace(params, buckets=named, fixed={component: own.fixed for component, own in buckets.items()})
    if step.component is None:
        return params
    own = buckets[step.component]
    bucket = own.own(step.bucket) if step.bucket else None
    match params:
        case shape.Params() if bucket:
            return replace(params, axes=bucket.axes, fixed=own.fixed)
        case Measuring() if bucket:
            return replace(params, bucket=bucket.name, axes=bucket.axes, buckets=own.named)
        case quantize.Params() if step.config.twins:
            return params
        case OverBuckets():
            return replace(params, buckets={bucket.name: bucket.axes} if bucket else own.named)
    return params


def check_language(config: ModelConfig, facts: Mapping[str, ingest.Facts]) -> None:
    """Check the config against the model, by the `facts` of ingest.

    Raises:
        ConfigError: a context is longer than the model was made for, or there are more parts than layers and a head.
    """
    language = config.language
    for model in (found.language for found in facts.values()):
        if language is None or model is None:
            continue
        longest = language.contexts[-1]
        if longest > model.context:
            raise ConfigError(
                f"the context of {longest} tokens is longer than {config.name} was made for",
                where=config.place("language_model.context"),
                why=f"the model, or a window that some of its layers see, ends at {model.context}",
                remedy=f"write language_model: {{context: {model.context}}} or less",
            )
        if language.parts != "auto" and language.parts > model.layers + 1:
            raise ConfigError(
                f"{config.name} can't be split into {language.parts} parts",
                where=config.place("language_model.parts"),
                why=f"it has {model.layers} layers, and a head behind them; layers are not split",
                remedy=f"write language_model: {{parts: {model.layers + 1}}} or less, or parts: auto",
            )
