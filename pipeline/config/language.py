"""Works out what a `language_model` in a config stands for: buckets, quantization and samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.config.buckets import Bucket, by_size
from pipeline.config.file import ComponentFile, LanguageModel
from pipeline.config.quantization import BlockWeights, Climb, Fp16, NodesRule, Quantization
from pipeline.config.readers import ChatReader
from pipeline.config.yaml.problems import Keys, Problems
from pipeline.config.yaml.tree import Node, place_of, walk

SEQUENCE, PAST = "sequence", "past"
"""The axes of a language model's graph."""
CHATS = Path("calibration/chat/chats.jsonl")
"""The conversations that are used without `calibration`."""
_TWIN = (16, 64)
"""Prefill and context of the small graphs that are emulated, as the shipped shapes take minutes a run."""
_LANGUAGE_FILES = (".gguf", ".safetensors", ".safetensors.index.json")
_EXCLUDED = ("buckets", "fixed", "cross", "constants")


def buckets_of(language: LanguageModel) -> tuple[Bucket, ...]:
    """The buckets: for each context a decode, which takes one token, and every prefill that fits into it twice."""
    found = [
        _bucket(sequence, context)
        for context in language.contexts
        for sequence in (1, *(size for size in language.prefills if 2 * size <= context))
    ]
    return tuple(sorted(found, key=by_size))


def twins_of(language: LanguageModel) -> tuple[Bucket, ...]:
    """The small buckets in place of those of :func:`buckets_of`, in their order; no larger than these."""
    prefill, context = _TWIN
    sizes = [bucket.axes for bucket in buckets_of(language)]
    return tuple(_bucket(min(prefill, axes[SEQUENCE]), min(context, sum(axes.values()))) for axes in sizes)


def _bucket(sequence: int, context: int) -> Bucket:
    return Bucket({SEQUENCE: sequence, PAST: context - sequence})


DEFAULT = Quantization(weights=BlockWeights("int8", 32))
"""The quantization without `quantization` in the config. For SmolLM2-135M it is 0.0108 nats off, and 0.0081 with an
embedding table of 16 bits; a scale for each channel is 0.0133 nats off (on the CPU, 487 unseen tokens)."""


def quantization_of(language: LanguageModel, written: Quantization) -> Quantization:
    """`written`, with rules for a residual stream in float16 and an embedding table as `language` wants it."""
    rules = (
        NodesRule(nodes=("*_residual", "*_norm"), precision="fp16"),
        *((NodesRule(nodes=("/embedding",), weights="uint8"),) if language.embedding == "uint8" else ()),
    )
    return replace(written, overrides=(*rules, *written.overrides))


def complete(fields: dict[str, Any], node: Node, folder: Path, problems: Problems) -> None:
    """Check the keys beside `language_model`, and fill in those that follow from it; `folder` is the project's."""
    if "language_model" not in fields or fields.get("speech_model"):  # what is written there has a mistake of its own
        return
    language: LanguageModel | None = fields["language_model"]
    components: Mapping[str, ComponentFile] = fields.get("components", {})
    for name, component in components.items():
        if component.file.endswith(_LANGUAGE_FILES) != (language is not None):
            keys: Keys = ("components", name, "file")
            if language is None:
                what, expected = "is a language model", "language_model: {context: 512, prefill: 128} beside it"
            else:
                what = f"is {component.file}, and 'language_model' is for GGUF files and safetensors"
                expected = "a .gguf or .safetensors file, or the .safetensors.index.json of several"
            problems.add(place_of(node, keys), keys, what, expected=expected)
    if language is None:
        return
    keys = ("language_model",)
    least, longest = language.prefills[0], language.contexts[-1]
    for context in language.contexts:
        if context < 2 * least:
            what = f"has a context of {context}, less than two windows of {least}"
            problems.add(place_of(node, keys), keys, what, expected=f"context: {2 * least} or more")
    for size in language.prefills[1:]:
        if longest < 2 * size:
            what = f"has a prefill of {size}, two of which are more than its longest context, {longest}"
            problems.add(place_of(node, keys), keys, what, expected=f"prefill: {longest // 2} or less")
    if len(components) > 1:
        problems.add(place_of(node, ("components",)), ("components",), "are several", expected="one language model")
    written = {keys[0] for keys, _ in walk(node) if len(keys) == 1}
    for key in _EXCLUDED:
        if key in written:
            expected = "nothing: the buckets of a language model are prefill and decode"
            problems.add(place_of(node, (key,)), (key,), "is of no effect with 'language_model'", expected=expected)
    _check_table(language, fields, components, node, problems)
    if fields.get("calibration", ...) is None:
        fields["calibration"] = ChatReader("chat", folder / CHATS)
    if isinstance(fields.get("quantization"), Climb):
        fields["quantization"] = DEFAULT
    if "packing" not in written:
        fields["packing"] = "buckets"
    elif fields.get("packing") not in ("buckets", "separate"):
        what = f"is {fields.get('packing')}, by which no engine for language models opens contexts"
        problems.add(place_of(node, ("packing",)), ("packing",), what, expected="buckets or separate")


def _check_table(
    language: LanguageModel,
    fields: Mapping[str, Any],
    components: Mapping[str, ComponentFile],
    node: Node,
    problems: Problems,
) -> None:
    """Refuse a table on the host that would not be integers: engines copy its rows into the graph's input unchanged."""
    if language.embedding != "host":
        return
    for name, component in components.items():
        quantization: object = component.quantization
        keys: Keys = ("components", name, "quantization")
        if quantization is None:
            quantization, keys = fields.get("quantization"), ("quantization",)
        if isinstance(quantization, Fp16):
            what = "is fp16, with which a graph takes no integers, and a table of embeddings on the host has them"
            problems.add(place_of(node, keys), keys, what, expected="embedding: uint16, or another quantization")
