"""Model configurations: read once, at the edge, into frozen and resolved values.

    configs/<model>.yaml --parse--> tree --decode--> config_file types --check, merge, resolve--> ModelConfig

:mod:`pipeline.config.file` says what may be written, :mod:`pipeline.config.yaml` reads it. All mistakes in all files
are found before an error is raised, and a config that was loaded is consistent in itself.

Checks calibration and verification samples, each by themselves and together.

Checks, before anything runs, that quantization as configured makes sense and that every target can compute it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.config import language, project_file, release_checks, speech
from pipeline.config.buckets import Bucket, read_buckets
from pipeline.config.file import (
    ComponentFile,
    HubSource,
    LanguageModel,
    LocalSource,
    ModelFile,
    ModelLimits,
    ReleaseSettings,
    Verification,
)
from pipeline.config.file_names import RESERVED
from pipeline.config.judging import check_outputs, given_fields, thresholds_of, wished_of
from pipeline.config.model_config import Component, ModelConfig
from pipeline.config.quantization import (
    Auto,
    BlockWeights,
    Climb,
    Fp16,
    Quantization,
    QuantizationOverride,
    Rule,
    TensorsRule,
    Weights,
    by_default,
    takes_blocks,
)
from pipeline.config.readers import (
    AudioReader,
    ChatReader,
    HubData,
    ImagesReader,
    NpzReader,
    PythonReader,
    Reader,
    RecordReader,
    SpeechReader,
    TextReader,
)
from pipeline.config.targets import DEVICE, Target, read_targets
from pipeline.config.written_values import CONFIGS, NAME, PROJECT, PythonFunction
from pipeline.config.yaml.decode import INVALID, decode_fields
from pipeline.config.yaml.field_types import Record, record_of
from pipeline.config.yaml.problems import Keys, Place, Problems, dotted
from pipeline.config.yaml.tree import Node, Value, place_of, read, walk
from pipeline.contracts.scheme import BLOCKS
from pipeline.errors import ConfigError
from pipeline.qnn import catalog
from pipeline.qnn.target import BLOCKS_HTP_ARCH, FLOAT16_HTP_ARCH, SHARED_WEIGHTS_HTP_ARCH, WIDE_PRODUCTS_HTP_ARCH

__all__ = [
    "DEVICE",
    "Auto",
    "Bucket",
    "Component",
    "Fp16",
    "HubSource",
    "LanguageModel",
    "LocalSource",
    "ModelConfig",
    "ModelLimits",
    "PythonFunction",
    "Quantization",
    "Reader",
    "ReleaseSettings",
    "Target",
    "Verification",
    "load",
    "load_healthy",
]


def load(path: Path) -> ModelConfig:
    """The model that `path` (`<project>/configs/<model>.yaml`) describes.

    It is not checked whether the files that it names exist: listing and cleaning work without them.

    Raises:
        ConfigError: listing every mistake in the file, each with line, column, path in the document and remedy.
    """
    problems = Problems()
    config = _read(path, problems)
    if config is None:
        raise problems.refusal()
    return config


def load_healthy(
    folder: Path, only: Collection[str] | None = None
) -> tuple[dict[str, ModelConfig], ConfigError | None]:
    """The models of all `*.yaml` in `folder` (`<project>/configs`) without a mistake, by name, in the order of names.

    Also returns the error that lists every mistake in the other files, including the project's settings; None if there
    is no mistake. With `only`, files of other models are not read.
    """
    problems = Problems()
    configs: dict[str, ModelConfig] = {}
    if not folder.is_dir():
        problems.add(Place(_shown(folder)), (), "is not there", expected="the folder with one YAML file a model")
    for path in sorted(folder.glob("[!.]*")):
        if only is not None and path.stem not in only and path.suffix in (".yaml", ".yml"):
            continue
        if path.suffix == ".yml":
            problems.add(Place(_shown(path)), (), "would not be read", expected=f"the name {path.stem}.yaml")
        elif path.suffix == ".yaml" and path.name not in RESERVED and (config := _read(path, problems)):
            configs[config.name] = config
    project_file.decode(folder, problems)  # so that its mistakes are told together with all others
    return configs, problems.refusal() if len(problems) else None


@cache
def _form() -> Record:
    return record_of(ModelFile)


def _read(path: Path, problems: Problems) -> ModelConfig | None:
    """The config in one file, or None when something was added to `problems`."""
    file, earlier = _shown(path), len(problems)
    if not re.fullmatch(NAME.regex, path.stem):
        problems.add(Place(file), (), f"the file's name can't name a model: '{path.stem}'", expected=NAME.expected)
    release_checks.check_model(path.stem, file, problems)
    data = read(path, file, problems)
    if data is None:
        return None
    config = _decoded(path, data, problems)
    return config if len(problems) == earlier else None


def _decoded(path: Path, data: bytes, problems: Problems) -> ModelConfig | None:
    """The config in the bytes of a file, or None when something was added to `problems`."""
    from pipeline.config.yaml.parse import parse  # PyYAML: only for who has a file to parse

    earlier = len(problems)
    node = parse(data, _shown(path), problems)
    if node is None:
        return None
    folder = Path(os.path.abspath(path)).parent
    fields = decode_fields(_form(), node, problems, {PROJECT: folder.parent, CONFIGS: folder})
    targets = read_targets(fields.get("targets", ()), node, problems)
    language.complete(fields, node, folder.parent, problems)
    speech.complete(fields, node, folder.parent, problems)
    spoken: LanguageModel | None = fields.get("language_model")
    buckets = language.buckets_of(spoken) if spoken else read_buckets(fields, node, problems)
    # Rounding by samples was measured on encoders and vision models; a language model has a default of its own.
    architectures = [catalog.resolve(target.soc).htp_arch for target in targets]
    blocks = takes_blocks(fields.get("outputs", ()), fields.get("compiler", ""))
    default = Quantization() if spoken else by_default(architectures, blocks=blocks)
    components = _components(fields, default)
    quantized = {name: component.quantization for name, component in components.items()}
    check(quantized, [target.soc for target in targets], node, problems)
    _check_calibration(fields, components, node, problems)
    check_samples(fields, node, problems)
    verification: Verification | None = fields.get("verification")
    own = {name: component.outputs for name, component in fields.get("components", {}).items()}
    check_outputs(verification.outputs if verification else {}, own, node, problems)
    _check_packing(fields, targets, node, problems)
    release_checks.check(fields.get("release"), components, node, problems)
    if len(problems) > earlier:
        return None
    return ModelConfig(
        name=path.stem,
        path=path,
        source=fields["source"],
        components=components,
        files=fields["files"],
        fixed=fields["fixed"],
        buckets=buckets,
        calibration=fields["calibration"],
        verification=fields["verification"],
        targets=targets,
        packing=fields["packing"],
        limits=fields["limits"],
        release=fields["release"],
        on_request=fields["on_request"],
        places={dotted(keys): str(found.place) for keys, found in walk(node)},
        language=spoken,
        speech=fields["speech_model"],
        outputs=fields["outputs"],
        compiler=fields["compiler"],
    )


def _components(fields: Mapping[str, Any], default: Quantization) -> dict[str, Component]:
    """The components whose quantization is known, with what they override merged in."""
    written: Mapping[str, ComponentFile] = fields.get("components", {})
    model: Quantization | Fp16 | Auto | Climb | None = fields.get("quantization")
    found = {}
    for name, component in written.items():
        own = component.quantization
        merged = own if isinstance(own, Fp16 | Auto | Climb) else model
        if isinstance(own, QuantizationOverride) and model:
            base = model if isinstance(model, Quantization) else Quantization()
            merged = replace(base, **given_fields(own))
        budget = merged.budget_minutes if isinstance(merged, Auto | Climb) else None
        left_out = isinstance(merged, Climb)
        merged = default if isinstance(merged, Climb) else merged
        if fields.get("language_model") and isinstance(merged, Quantization):
            merged = language.quantization_of(fields["language_model"], merged)
        if fields.get("speech_model") and isinstance(merged, Quantization):
            merged = speech.quantization_of(name, merged)
        if merged:
            verification: Verification | None = fields.get("verification")
            outputs = component.outputs or (verification.outputs if verification else {})
            truth = component.truth or (verification.truth if verification else "unpadded")
            limits = (fields.get("thresholds"), component.thresholds)
            required = verification is not None and verification.reading == "required"
            thresholds = replace(thresholds_of(limits, outputs), reading_required=required)
            found[name] = Component(
                name=name,
                file=component.file,
                padding=component.padding,
                constants={**fields.get("constants", {}), **component.constants},
                quantization=merged,
                score=component.score or (verification.score if verification else None),
                thresholds=thresholds,
                outputs=outputs,
                truth=truth,
                cut=tuple(component.cut),
                begin=tuple(component.begin),
                budget_minutes=budget,
                wished=wished_of(limits, thresholds) if left_out else None,
            )
    return found


def _check_calibration(
    fields: Mapping[str, Any], components: Mapping[str, Component], node: Node, problems: Problems
) -> None:
    if fields.get("calibration", INVALID) is not None:
        return
    if "language_model" not in fields:  # what is written there has a mistake, and calibration of its own
        return
    quantized = any(not isinstance(component.quantization, Fp16) for component in components.values())
    # If no component could be read, the text still tells whether one of them may need no calibration.
    float16 = any(isinstance(found, Value) and found.data == "fp16" for _, found in walk(node))
    if quantized or not (components or float16):
        expected = "samples, as in calibration: {reader: text, file: ...}, or quantization: {precision: fp16}"
        problems.add(node.place, ("calibration",), "is missing", expected=expected)


def _check_packing(fields: Mapping[str, Any], targets: Sequence[Target], node: Node, problems: Problems) -> None:
    """Refuse packings that don't work: the compiler accepts them, and the emulator runs no shared binary to show it."""
    packing = fields.get("packing")
    for target in targets:
        if target.compile == DEVICE and packing in ("buckets", "socs"):
            what = f"contexts for {target.soc} are compiled on the device, which makes no binaries that share"
            expected = "packing: separate, or for the target compile: host"
            problems.add(place_of(node, ("packing",)), ("packing",), what, expected=expected)
    if packing in ("socs", "auto") and any(t.compiler_options != targets[0].compiler_options for t in targets):
        what = "targets that are compiled with other options can't share a binary"
        expected = "packing: separate or buckets, or the same optimization, priority and provider_options everywhere"
        problems.add(place_of(node, ("packing",)), ("packing",), what, expected=expected)
    if packing in ("socs", "auto") and fields.get("outputs"):
        what = "an ExecuTorch program holds no binary that targets share, and a DLC is held against a context of one"
        problems.add(place_of(node, ("outputs",)), ("outputs",), what, expected="packing: separate or buckets")
    if fields.get("compiler") == "qairt" and (packing != "separate" or fields.get("language_model")):
        what = "the QAIRT SDK's tools make one binary for one bucket and target here, and no language models"
        problems.add(place_of(node, ("compiler",)), ("compiler",), what, expected="packing: separate")
    if packing != "buckets":
        return
    for soc in (catalog.resolve(target.soc) for target in targets):
        if soc.htp_arch < SHARED_WEIGHTS_HTP_ARCH:
            what = f"buckets can't share weights on {soc.name}, whose HTP is v{soc.htp_arch}"
            expected = f"targets from HTP v{SHARED_WEIGHTS_HTP_ARCH} on, or packing: separate"
            problems.add(place_of(node, ("packing",)), ("packing",), what, expected=expected)


def _shown(path: Path) -> str:
    """The path as messages show it: from the project's root on, as in `configs/demo.yaml`."""
    return path.relative_to(path.parent.parent).as_posix() if path.parent.name else os.fspath(path)


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
    """The source of a reader's samples: its folder or file, and for a function also the function."""
    match reader:
        case PythonReader(run=run, file=file):
            return run, file
        case (
            NpzReader(folder=folder)
            | ImagesReader(folder=folder)
            | AudioReader(folder=folder)
            | SpeechReader(folder=folder)
        ):
            return (folder,)
        case TextReader(file=file) | RecordReader(file=file) | ChatReader(file=file):
            return (file,)


Written = Quantization | Fp16 | Auto


def check(components: Mapping[str, Written], socs: Sequence[str], node: Node, problems: Problems) -> None:
    """Add a problem for everything that is wrong with the quantization of `components`, for targets on `socs`."""
    targets = [catalog.resolve(soc) for soc in socs]
    seen: set[tuple[str, str]] = set()
    for name, quantization in components.items():
        for key, what, expected in _problems(quantization, targets):
            keys = _keys(name, key, node)
            about = f"component '{name}' " if what.startswith("can't") else ""
            if (str(place_of(node, keys)), what) not in seen or about:
                problems.add(place_of(node, keys), keys, about + what, expected=expected)
            seen.add((str(place_of(node, keys)), what))


def _keys(component: str, key: Keys, node: Node) -> Keys:
    """The path of a key of a component's quantization, which is written with the component or with the model."""
    own: Keys = ("components", component, "quantization")
    has_own = place_of(node, (*own, *key)) != place_of(node, own[:2])
    return (*own, *key) if has_own else ("quantization", *key)


def _problems(quantization: Written, targets: Sequence[catalog.Soc]) -> Iterator[tuple[Keys, str, str]]:
    """The problems, each as the key, what is wrong with it, and what is expected."""
    match quantization:
        case Fp16():
            yield from _float16(("precision",), targets)
        case Quantization():
            yield from _method(quantization)
            for soc in targets if quantization.wide_products else ():
                if soc.htp_arch < WIDE_PRODUCTS_HTP_ARCH:
                    what = f"can't multiply 16 by 16 bits on {soc.name}, whose HTP is v{soc.htp_arch}"
                    yield ("wide_products",), what, f"targets from HTP v{WIDE_PRODUCTS_HTP_ARCH} on"
            yield from _wide_weights((), quantization.weights, targets)
            yield from _blocks((), quantization.weights, quantization.activations, quantization.per_channel, targets)
            for number, rule in enumerate(quantization.overrides):
                yield from _wide_weights(("overrides", number), rule.weights, targets)
                activations = rule.activations or quantization.activations
                per_channel = quantization.per_channel if rule.per_channel is None else rule.per_channel
                yield from _blocks(("overrides", number), rule.weights, activations, per_channel, targets)
                yield from _rule(("overrides", number), rule, targets)


def _blocks(
    keys: Keys, weights: Weights | None, activations: str, per_channel: bool, targets: Sequence[catalog.Soc]
) -> Iterator[tuple[Keys, str, str]]:
    if not isinstance(weights, BlockWeights):
        return
    if weights.block not in BLOCKS:
        yield (*keys, "weights", "block"), f"number {weights.block}", " or ".join(map(str, BLOCKS))
    if activations == "uint8":
        what = "blocks of weights exclude activations of 8 bits: QNN's kernel for blocks takes 16 alone"
        yield (*keys, "weights"), what, "activations: uint16, or weights without block"
    if not per_channel:
        what = "blocks of weights exclude per_channel: false: every block of a channel has a scale"
        yield (*keys, "weights"), what, "per_channel: true, or weights without block"
    for soc in targets:
        if soc.htp_arch < BLOCKS_HTP_ARCH:
            what = f"can't have weights in blocks on {soc.name}, whose HTP is v{soc.htp_arch}"
            yield (*keys, "weights"), what, f"targets from HTP v{BLOCKS_HTP_ARCH} on"


def _wide_weights(
    keys: Keys, weights: Weights | None, targets: Sequence[catalog.Soc]
) -> Iterator[tuple[Keys, str, str]]:
    for soc in targets if weights == "int16" else ():
        if soc.htp_arch < WIDE_PRODUCTS_HTP_ARCH:
            what = f"can't have 16 bit weights on {soc.name}, whose HTP is v{soc.htp_arch}"
            yield (*keys, "weights"), what, f"targets from HTP v{WIDE_PRODUCTS_HTP_ARCH} on"


def _method(quantization: Quantization) -> Iterator[tuple[Keys, str, str]]:
    if not 50 < quantization.percentile <= 100:
        yield ("percentile",), f"{quantization.percentile:g}", "more than 50 and at most 100, such as 99.99"


def _rule(keys: Keys, rule: Rule, targets: Sequence[catalog.Soc]) -> Iterator[tuple[Keys, str, str]]:
    types = (rule.activations, rule.weights, rule.per_channel)
    precision = None if isinstance(rule, TensorsRule) else rule.precision
    if precision is None and all(each is None for each in types):
        choices = "activations, weights, per_channel" + ("" if isinstance(rule, TensorsRule) else ", precision")
        yield keys, "changes nothing", f"one of {choices}"
    if precision is not None:
        if any(each is not None for each in types):
            yield (*keys, "precision"), "excludes types: these nodes stay in float", "precision alone"
        yield from _float16((*keys, "precision"), targets)


def _float16(keys: Keys, targets: Sequence[catalog.Soc]) -> Iterator[tuple[Keys, str, str]]:
    for soc in targets:
        if not soc.computes_float16:
            expected = f"targets from HTP v{FLOAT16_HTP_ARCH} on, or quantization to integers"
            yield keys, f"can't be fp16 on {soc.name}, whose HTP is v{soc.htp_arch}", expected
