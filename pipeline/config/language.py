"""What a `language_model` in a config stands for: buckets, quantization, samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.config.buckets import Bucket, by_size
from pipeline.config.file import ComponentFile, LanguageModel
from pipeline.config.quantization import Climb, NodesRule, Quantization
from pipeline.config.readers import ChatReader
from pipeline.config.yaml.problems import Keys, Problems
from pipeline.config.yaml.tree import Node, place_of, walk

SEQUENCE, PAST = "sequence", "past"
"""The axes of a language model's graph."""
CHATS = Path("calibration/chat/chats.jsonl")
"""The conversations that serve without `calibration`."""
_TWIN = (16, 64)
"""Prefill and context of the small graphs that are emulated in every build: the shipped shapes take minutes a run."""
_LANGUAGE_FILES = (".gguf", ".safetensors", ".safetensors.index.json")
_EXCLUDED = ("buckets", "fixed", "cross", "constants")


def buckets_of(language: LanguageModel) -> tuple[Bucket, ...]:
    """Decode, which takes one token, and prefill."""
    return _buckets(language.prefill, language.context)


def twins_of(language: LanguageModel) -> tuple[Bucket, ...]:
    """The same on a small scale, in the same order; the very same where the model is as small."""
    prefill, context = _TWIN
    return _buckets(min(prefill, language.prefill), min(context, language.context))


def _buckets(prefill: int, context: int) -> tuple[Bucket, ...]:
    found = [Bucket({SEQUENCE: sequence, PAST: context - sequence}) for sequence in (1, prefill)]
    return tuple(sorted(found, key=by_size))


def quantization_of(language: LanguageModel, written: Quantization) -> Quantization:
    """The residual stream in float16, a cache of 8 bits with one encoding for keys and one for values of a layer."""
    rules = (
        NodesRule(nodes=("*_residual", "*_norm"), precision="fp16"),
        *((NodesRule(nodes=("/embedding",), weights="uint8"),) if language.embedding == "uint8" else ()),
    )
    return replace(written, overrides=(*rules, *written.overrides))


def complete(fields: dict[str, Any], node: Node, folder: Path, problems: Problems) -> None:
    """Check what stands beside `language_model`, and fill in what follows from it; `folder` is the project's."""
    language: LanguageModel | None = fields.get("language_model")
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
    if language.context < 2 * language.prefill:
        what = f"has a context of {language.context}, less than two windows of {language.prefill}"
        problems.add(place_of(node, keys), keys, what, expected=f"context: {2 * language.prefill} or more")
    if len(components) > 1:
        problems.add(place_of(node, ("components",)), ("components",), "are several", expected="one language model")
    written = {keys[0] for keys, _ in walk(node) if len(keys) == 1}
    for key in _EXCLUDED:
        if key in written:
            expected = "nothing: the buckets of a language model are prefill and decode"
            problems.add(place_of(node, (key,)), (key,), "is of no effect with 'language_model'", expected=expected)
    if fields.get("calibration", ...) is None:
        fields["calibration"] = ChatReader("chat", folder / CHATS)
    if isinstance(fields.get("quantization"), Climb):
        fields["quantization"] = Quantization()
    if "packing" not in written:
        fields["packing"] = "buckets"
