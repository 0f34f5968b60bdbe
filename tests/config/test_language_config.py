"""`language_model` in a config: what follows from it, and what it can't stand beside."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.load import Fp16, ModelConfig, Quantization, load
from pipeline.config.quantization import BlockWeights, NodesRule
from pipeline.config.readers import ChatReader
from pipeline.contracts import emulate, quantize
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
    assert [rule.nodes for rule in scheme.overrides if isinstance(rule, NodesRule)] == [("*_residual", "*_norm")]
    assert scheme.weights == BlockWeights("int8", 32)
    assert config.components["model"].budget_minutes is None


def test_every_context_has_a_decode_and_the_prefills_that_fit_into_it_twice(tmp_path: Path) -> None:
    config = loaded(tmp_path, language_model="{context: [1024, 128], prefill: [32, 256]}")

    assert [bucket.name for bucket in config.buckets] == ["1x127", "1x1023", "32x96", "32x992", "256x768"]
    assert [twin.name for twin in config.twins] == ["1x63", "1x63", "16x48", "16x48", "16x48"]
    steps = [step.id for step in plan(config)]
    assert len(steps) == len({*steps})
    assert [step for step in steps if step.startswith("rewrite:") and step.endswith("16x48")] == [
        "rewrite:a/model/16x48"
    ]


def test_own_rules_come_after_those_that_follow(tmp_path: Path) -> None:
    config = loaded(tmp_path, quantization="{overrides: [{nodes: ['/head*'], precision: fp16}]}")

    scheme = config.components["model"].quantization
    assert isinstance(scheme, Quantization)
    last = scheme.overrides[-1]
    assert isinstance(last, NodesRule)
    assert last.nodes == ("/head*",)
    assert len(scheme.overrides) == 2


def test_fp16_stays_fp16(tmp_path: Path) -> None:
    assert isinstance(loaded(tmp_path, quantization="{precision: fp16}").components["model"].quantization, Fp16)


def test_small_twins_are_quantized_and_emulated_and_not_compiled(tmp_path: Path) -> None:
    steps = {step.id for step in plan(loaded(tmp_path))}

    assert {"rewrite:a/model/1x63", "rewrite:a/model/16x48", "emulate:a/model/1x511/snapdragon-x-elite"} <= steps
    assert "context:a/model/buckets/snapdragon-x-elite" in steps
    assert not any(name.startswith(("verify:", "context:")) and ("1x63" in name or "16x48" in name) for name in steps)


@pytest.mark.parametrize(("how", "twins"), [("twins", {"1x63", "16x48"}), ("shipped", set())])
def test_what_ships_can_be_emulated_and_a_twin_in_its_place_unless_that_is_not_wanted(
    how: str, twins: set[str], tmp_path: Path
) -> None:
    config = loaded(tmp_path, language_model=f"{{context: 512, prefill: 128, emulate: {how}}}")

    steps = [step for step in plan(config) if step.stage == "emulate"]

    given = [(each.role, each.part.name) for step in steps for each in step.inputs if each.part]
    shipped = {"1x511", "128x384"}
    assert (
        {name for role, name in given if role == "model"}
        == {name for role, name in given if role == "alone"}
        == shipped
    )
    assert {name for role, name in given if role == "twin"} == twins
    axes = [step.params.twin for step in steps if isinstance(step.params, emulate.Params)]
    assert {f"{each['sequence']}x{each['past']}" for each in axes if each} == (twins or shipped)


def test_weights_of_4_bits_leave_the_table_8(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        language_model="{embedding: uint8}",
        quantization="{weights: {dtype: int4, block: 32}, rounding: gptq}",
    )

    scheme = config.components["model"].quantization
    assert isinstance(scheme, Quantization)
    assert [rule.nodes for rule in scheme.overrides if isinstance(rule, NodesRule)][-1] == ("/embedding",)
    assert "correlate:a/model" in {step.id for step in plan(config)}


@pytest.mark.parametrize("where", ["host", "uint16"])
def test_engines_are_given_a_table_that_is_on_the_host(where: str, tmp_path: Path) -> None:
    steps = {step.id: step for step in plan(loaded(tmp_path, language_model=f"{{embedding: {where}}}"))}

    quantized = steps["quantize:a/model"].params
    assert isinstance(quantized, quantize.Params)
    assert quantized.on_host is (True if where == "host" else None)
    given = [each for each in steps["bundle:a/model/snapdragon-x-elite"].inputs if each.role == "table"]
    assert [each.files for each in given] == ([("embedding.bin",)] if where == "host" else [])


@pytest.mark.parametrize("wrong", ["{embedding: hosts}", "{contexts: 64}", "{context: no}", "64"])
def test_a_mistake_is_told_without_another_that_follows_from_it(wrong: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, language_model=wrong)

    assert "calibration" not in str(refused.value)


def test_a_table_on_the_host_goes_by_the_quantization_that_is_used(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        language_model="{embedding: host}",
        quantization="{precision: fp16}",
        components="{model: {file: a.gguf, quantization: {activations: uint16, weights: uint8}}}",
    )

    assert isinstance(config.components["model"].quantization, Quantization)


@pytest.mark.parametrize("packing", ["buckets", "separate"])
def test_engines_are_given_the_contexts_of_both_buckets_and_asked(tmp_path: Path, packing: str) -> None:
    steps = {step.id: step for step in plan(loaded(tmp_path, packing=packing))}
    made = "buckets" if packing == "buckets" else "1x511"

    bundle = steps["bundle:a/model/snapdragon-x-elite"]
    asked = steps["converse:a/model/snapdragon-x-elite"]

    assert f"context:a/model/{made}/snapdragon-x-elite" in bundle.after
    assert {each.role for each in asked.inputs} == {
        "ingest",
        "samples",
        "context/{bucket}",
        "model/{bucket}",
        "twin/{bucket}",
        *(["alone/{bucket}"] if packing == "buckets" else []),
    }
    assert {each.part.name for each in asked.inputs if each.role == "twin/{bucket}" and each.part} == {"1x63", "16x48"}


def test_graphs_of_a_shared_binary_are_compiled_alone_and_wait_for_nothing_but_their_models(tmp_path: Path) -> None:
    steps = {step.id: step for step in plan(loaded(tmp_path))}
    decode, prefill = (f"alone:a/model/{bucket}/snapdragon-x-elite" for bucket in ("1x511", "128x384"))

    assert {*steps[decode].after} == {*steps[prefill].after} == {"quantize:a/model", "ingest:a/model"}
    emulated = steps["emulate:a/model/128x384/snapdragon-x-elite"]
    assert {*emulated.after} == {"quantize:a/model", "ingest:a/model", "samples:a/calibration", prefill}
    assert {decode, prefill} <= {*steps["converse:a/model/snapdragon-x-elite"].after}


def test_binaries_that_nothing_shares_are_emulated_as_they_ship(tmp_path: Path) -> None:
    steps = {step.id: step for step in plan(loaded(tmp_path, packing="separate"))}

    assert not any(step.stage == "alone" for step in steps.values())
    decode = steps["emulate:a/model/1x511/snapdragon-x-elite"]
    assert "context:a/model/1x511/snapdragon-x-elite" in decode.after


def test_no_engine_is_asked_where_nothing_is_emulated(tmp_path: Path) -> None:
    steps = {step.id for step in plan(loaded(tmp_path, verification="{emulator_samples: 0}"))}

    assert "bundle:a/model/snapdragon-x-elite" in steps
    assert not any(name.startswith(("converse:", "alone:")) for name in steps)


@pytest.mark.parametrize(("written", "parts"), [("", 0), (", parts: auto", 0), (", parts: 3", 3)])
def test_contexts_are_split_as_written(written: str, parts: int, tmp_path: Path) -> None:
    steps = plan(loaded(tmp_path, language_model=f"{{context: 512, prefill: 128{written}}}"))

    found = {getattr(step.params, "parts", None) for step in steps if step.stage in ("context", "emulate")}
    assert found == {parts}


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ({"quantization": "{weights: {dtype: uint4, block: 32}}"}, "QNN takes blocks of uint4 and computes something"),
        ({"language_model": ""}, "is a language model; expected language_model"),
        (
            {"language_model": "", "components": "{model: {file: model.safetensors.index.json}}"},
            "is a language model; expected language_model",
        ),
        ({"components": "{model: {file: a.onnx}}"}, "'language_model' is for GGUF files"),
        ({"components": "{model: {file: a.gguf}, b: {file: b.gguf}}"}, "one language model"),
        ({"language_model": "{context: 200, prefill: 128}"}, "less than two windows of 128"),
        ({"language_model": "{context: [512, 32], prefill: [32, 64]}"}, "a context of 32, less than two windows of 32"),
        ({"language_model": "{context: [512], prefill: [32, 300]}"}, "a prefill of 300, two of which are more"),
        ({"language_model": "{context: [512, 512]}"}, "the same as entry"),
        ({"language_model": "{context: [8]}"}, "expected an integer from 16"),
        ({"buckets": "{sequence: [8]}"}, "is of no effect with 'language_model'"),
        ({"constants": "{a: 1}"}, "is of no effect with 'language_model'"),
        ({"language_model": "{context: 512, prefil: 128}"}, "prefill"),
        ({"packing": "auto"}, "expected buckets or separate"),
        ({"packing": "socs"}, "expected buckets or separate"),
        ({"language_model": "{context: 512, parts: 0}"}, "parts: number 0; expected an integer from 1 to 64"),
        (
            {"language_model": "{embedding: host}", "quantization": "{precision: fp16}"},
            "is fp16, with which a graph takes no integers",
        ),
        (
            {
                "language_model": "{embedding: host}",
                "components": "{model: {file: a.gguf, quantization: {precision: fp16}}}",
            },
            "is fp16, with which a graph takes no integers",
        ),
        ({"language_model": "{embedding: float}"}, "'float' is not known here; expected uint8 or uint16 or host"),
        ({"language_model": "{context: 512, parts: some}"}, "parts: 'some' is not known here; expected auto"),
    ],
)
def test_what_contradicts_itself_is_refused(lines: dict[str, str], text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=text):
        loaded(tmp_path, **lines)
