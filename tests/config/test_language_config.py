"""`language_model` in a config: what follows from it, and what it can't stand beside."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.load import Fp16, ModelConfig, Quantization, load
from pipeline.config.quantization import NodesRule
from pipeline.config.readers import ChatReader
from pipeline.errors import ConfigError
from pipeline.plan.planner import plan

LINES = {
    "source": "{path: ../models/a}",
    "components": "{model: {file: a.gguf}}",
    "language_model": "{context: 512, prefill: 128}",
    "targets": "[snapdragon-x-elite]",
}


def loaded(tmp_path: Path, **lines: str) -> ModelConfig:
    (tmp_path / "configs").mkdir()
    written = {**LINES, **lines}
    text = "".join(f"{key}: {value}\n" for key, value in written.items() if value)
    (tmp_path / "configs" / "a.yaml").write_text(text, "utf-8")
    return load(tmp_path / "configs" / "a.yaml")


def test_buckets_samples_quantization_and_packing_follow(tmp_path: Path) -> None:
    config = loaded(tmp_path)

    assert [bucket.name for bucket in config.buckets] == ["1x511", "128x384"]
    assert [twin.name for twin in config.twins] == ["1x63", "16x48"]
    assert config.calibration == ChatReader("chat", tmp_path / "calibration" / "chat" / "chats.jsonl")
    assert config.packing == "buckets"
    scheme = config.components["model"].quantization
    assert isinstance(scheme, Quantization)
    assert [rule.nodes for rule in scheme.overrides if isinstance(rule, NodesRule)] == [
        ("*_residual", "*_norm"),
        ("/embedding",),
    ]
    assert config.components["model"].budget_minutes is None


def test_own_rules_come_after_those_that_follow(tmp_path: Path) -> None:
    config = loaded(tmp_path, quantization="{overrides: [{nodes: ['/head*'], precision: fp16}]}")

    scheme = config.components["model"].quantization
    assert isinstance(scheme, Quantization)
    last = scheme.overrides[-1]
    assert isinstance(last, NodesRule)
    assert last.nodes == ("/head*",)
    assert len(scheme.overrides) == 3


def test_fp16_stays_fp16(tmp_path: Path) -> None:
    assert isinstance(loaded(tmp_path, quantization="{precision: fp16}").components["model"].quantization, Fp16)


def test_small_twins_are_quantized_and_emulated_and_not_compiled(tmp_path: Path) -> None:
    steps = {step.id for step in plan(loaded(tmp_path))}

    assert {"rewrite:a/model/1x63", "rewrite:a/model/16x48", "emulate:a/model/1x511/snapdragon-x-elite"} <= steps
    assert "context:a/model/buckets/snapdragon-x-elite" in steps
    assert not any(name.startswith(("verify:", "context:")) and ("1x63" in name or "16x48" in name) for name in steps)


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ({"language_model": ""}, "is a language model; expected language_model"),
        (
            {"language_model": "", "components": "{model: {file: model.safetensors.index.json}}"},
            "is a language model; expected language_model",
        ),
        ({"components": "{model: {file: a.onnx}}"}, "'language_model' is for GGUF files"),
        ({"components": "{model: {file: a.gguf}, b: {file: b.gguf}}"}, "one language model"),
        ({"language_model": "{context: 200, prefill: 128}"}, "less than two windows of 128"),
        ({"buckets": "{sequence: [8]}"}, "is of no effect with 'language_model'"),
        ({"constants": "{a: 1}"}, "is of no effect with 'language_model'"),
        ({"language_model": "{context: 512, prefil: 128}"}, "prefill"),
    ],
)
def test_what_contradicts_itself_is_refused(lines: dict[str, str], text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=text):
        loaded(tmp_path, **lines)
