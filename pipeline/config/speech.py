"""Works out what a `speech_model` in a config stands for: its two components, quantization and samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.config.file import ComponentFile, SpeechModel
from pipeline.config.quantization import BlockWeights, Climb, Fp16, NodesRule, Quantization
from pipeline.config.readers import SpeechReader
from pipeline.config.yaml.problems import Problems
from pipeline.config.yaml.tree import Node, place_of, walk

ENCODER, DECODER = "encoder", "decoder"
"""The components of a speech model."""
SOUNDS = Path("calibration/speech")
"""The sounds that are used without `calibration`."""
DEFAULT = Quantization(weights=BlockWeights("int8", 32), rounding="gptq")
"""The quantization of the decoder without `quantization` in the config. The encoder is in float16 then: of Whisper
tiny.en, 40 held-out clips lost no word of 390 so, and 7 with all but its second layers in integers; its context has
20.4 MB in place of 23.9."""
_IN_FLOAT = NodesRule(nodes=("/encoder/*/gelu", "/encoder/*/narrow*"), precision="fp16")
"""Kept in float where an encoder is quantized: some inputs of its second layers are far larger than the rest, and other
sounds have them larger still. Whisper tiny.en, calibrated on synthetic voices, heard 13 real clips with 7 of 115 words
wrong (0.044 nats, 24 dB) with all of it in 16 bits, and none (0.0002 nats, 36 dB) with this in float."""
_EXCLUDED = ("buckets", "fixed", "cross", "constants", "language_model")
_WEIGHTS = (".safetensors", ".safetensors.index.json")


def quantization_of(component: str, written: Quantization) -> Quantization:
    """`written`, with a rule for what the encoder needs in float16; a rule that is written has the last word."""
    if component != ENCODER:
        return written
    return replace(written, overrides=(_IN_FLOAT, *written.overrides))


def complete(fields: dict[str, Any], node: Node, folder: Path, problems: Problems) -> None:
    """Check the keys beside `speech_model`, and fill in those that follow from it; `folder` is the project's."""
    speech: SpeechModel | None = fields.get("speech_model")
    reader = fields.get("calibration")
    if speech is None:
        if isinstance(reader, SpeechReader):
            expected = "speech_model: {tokens: 224} beside it"
            problems.add(place_of(node, ("calibration",)), ("calibration",), "is for speech models", expected=expected)
        return
    components: Mapping[str, ComponentFile] = fields.get("components", {})
    files = {component.file for component in components.values()}
    if components and ({*components} != {ENCODER, DECODER} or len(files) > 1 or not files.pop().endswith(_WEIGHTS)):
        expected = "encoder and decoder, both with file: model.safetensors"
        problems.add(place_of(node, ("components",)), ("components",), "are no speech model's", expected=expected)
    written = {keys[0] for keys, _ in walk(node) if len(keys) == 1}
    for key in _EXCLUDED:
        if key in written:
            expected = "nothing: the shapes of a speech model are fixed by its file"
            problems.add(place_of(node, (key,)), (key,), "is of no effect with 'speech_model'", expected=expected)
    for name, component in components.items():
        for key in ("cut", "begin"):
            if getattr(component, key):
                keys = ("components", name, key)
                problems.add(place_of(node, keys), keys, "is for ONNX files", expected="nothing")
    if fields.get("calibration", ...) is None:
        fields["calibration"] = SpeechReader("speech", folder / SOUNDS)
    if isinstance(fields.get("quantization"), Climb):
        fields["quantization"] = DEFAULT
        encoder = components.get(ENCODER)
        if encoder is not None and encoder.quantization is None:
            fields["components"] = {**components, ENCODER: replace(encoder, quantization=Fp16("fp16"))}
