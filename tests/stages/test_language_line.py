"""A tiny language model from its GGUF file to a context that was emulated, by the real command line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TypeVar

import pytest

from pipeline.contracts import context, correlate, emulate, ingest, quantize, reading, rewrite, verify
from pipeline.contracts.codec import Contract
from pipeline.qnn.format.context_binary import read_binaries
from pipeline.store.manifests import read_manifest
from tests.support.gguf_files import tiny_gguf
from tests.support.language_project import CONFIG, built_with, language_project
from tests.support.project import ROOT, Project

Kind = TypeVar("Kind", bound=Contract)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = language_project(tmp_path_factory.mktemp("language"))
    made.doit("build:tiny")
    return made


def facts_of(project: Project, kind: type[Kind], step: str) -> Kind:
    manifest = read_manifest(project.root / ".build" / "steps" / f"{step}.json")
    assert manifest is not None
    return kind.from_json(manifest.facts)


def test_the_whole_line_ends_in_one_verified_binary(project: Project) -> None:
    made = facts_of(project, context.Facts, "context/tiny/model/buckets/snapdragon-x-elite")

    assert sorted(made.parts) == ["1x31", "8x24"]
    for part in made.parts.values():
        assert part.facts.partitions == 1
        assert [node.name for node in part.facts.fallbacks] == []
        assert [(node.op, node.edge) for node in part.facts.cpu_nodes] == [("DequantizeLinear", True)]  # the logits'
    assert len({name for part in made.parts.values() for name in part.facts.binaries}) == 1
    folder = project.root / "artifacts" / "tiny" / "snapdragon-x-elite"
    assert len([*folder.glob("*.bin")]) == 1


def test_the_cache_goes_in_and_out_as_the_same_integers(project: Project) -> None:
    made = facts_of(project, context.Facts, "context/tiny/model/buckets/snapdragon-x-elite")
    parts = facts_of(project, quantize.Facts, "quantize/tiny/model").parts

    edges = [part.facts.edges for part in parts.values()]
    assert all(each == edges[0] for each in edges)  # of prefill, decode, and their twins
    for layer in range(2):
        for kind in ("key", "value"):
            into, out = (edges[0][f"past_{kind}_{layer}_{side}"] for side in ("in", "out"))
            assert into == out
            assert (into.dtype, into.zero_point) == ("uint8", 128)
    given = {spec.name: spec.dtype for spec in made.parts["1x31"].facts.inputs}
    assert given["input_ids"] == "int32"
    assert {kind for name, kind in given.items() if name.startswith("past_")} == {"uint8"}
    assert {given[name] for name in ("attention_mask", "position_ids_cos", "position_ids_sin")} == {"uint16"}
    mask = edges[0]["attention_mask"]
    assert (65535 - mask.zero_point) * mask.scale == 0  # as Genie writes what is seen


def test_next_tokens_are_measured_on_the_cpu_and_on_the_emulator(project: Project) -> None:
    prefill = facts_of(project, verify.Facts, "verify/tiny/model/8x24").language
    decode = facts_of(project, emulate.Facts, "emulate/tiny/model/1x31/snapdragon-x-elite")

    assert {*prefill} == {"rewrite", "quantization"}
    assert prefill["rewrite"].kl == pytest.approx(0, abs=1e-5)
    assert prefill["quantization"].tokens > 16
    assert decode.twin == "1x31"  # it is as small as a twin
    assert decode.language["compile"].tokens == 32 - 28  # of an answer that begins behind 28


def test_what_was_read_is_what_llama_cpp_reads_and_all_records_say_so(project: Project) -> None:
    made = facts_of(project, reading.Facts, "reading/tiny/model")
    paths = [*(project.root / "artifacts").rglob("manifest.json")]
    told = "".join(json.dumps(json.loads(path.read_text("utf-8"))) for path in paths)
    run = json.loads((project.root / ".build" / "run.json").read_text("utf-8"))

    assert (made.reading.shown, made.reading.by) == ("exact", "llama.cpp")
    assert '"by": "llama.cpp"' in told
    assert '"reading": {"logits": {' in told
    artifacts = [each for each in run["artifacts"].values() if "language" in each]
    assert {each["language"]["reading"]["top1"] for each in artifacts} == {1.0}


def test_a_misreading_fails_the_build_with_the_first_difference(project: Project, tmp_path: Path) -> None:
    old, new = 'numbers.base("rope.freq_base", 10_000.0)', "100.0"
    run = built_with(project, tmp_path / "misread", "pipeline/inputs/gguf/language.py", old, new)

    assert run.status == 16
    assert "the reading rung misses its threshold: the logits are" in run.text
    assert "from llama.cpp's on the same file, 60.0 dB are asked for" in run.text


def test_decode_is_judged_by_the_tokens_of_answers(project: Project) -> None:
    decode = facts_of(project, verify.Facts, "verify/tiny/model/1x31").language

    # Held out are those about "inner" and "den", cut to 32 tokens; both answers begin behind 28.
    assert decode["quantization"].tokens == 2 * (32 - 28)
    assert decode["rewrite"].tokens == 32  # of the first, with what is asked there


def test_parts_compute_what_one_context_does(project: Project, tmp_path: Path) -> None:
    split = project.copy(tmp_path / "split")
    split.write("configs/tiny.yaml", CONFIG.replace("prefill: 8}", "prefill: 8, parts: 3}"))

    run = split.doit("build:tiny")

    kinds = {step.split(":")[0] for step in run.built}
    assert {"context", "emulate"} <= kinds
    assert not kinds & {"ingest", "shape", "rewrite", "calibrate", "quantize", "verify"}
    made = facts_of(split, context.Facts, "context/tiny/model/buckets/snapdragon-x-elite")
    for part in made.parts.values():
        assert part.facts.cuts == ("/layers.0/gated_residual", "/layers.1/gated_residual")
        assert part.facts.binaries == tuple(f"model_{number}_of_3_qnn.bin" for number in (1, 2, 3))
        assert part.facts.partitions == 3
        assert part.facts.fallbacks == ()
    folder = split.root / "artifacts" / "tiny" / "snapdragon-x-elite"
    for number in (1, 2, 3):
        names = [
            graph.name for (info,) in [read_binaries(folder / f"model_{number}_of_3_qnn.bin")] for graph in info.graphs
        ]
        assert sorted(re.sub("_0+", "_", name) for name in names) == [f"ar{n}_cl32_{number}_of_3" for n in (1, 8)]
        assert sorted(path.name for path in folder.glob("*.bin")) == sorted(part.facts.binaries)
    for bucket in ("8x24", "1x31"):
        step = f"emulate/tiny/model/{bucket}/snapdragon-x-elite"
        one, several = (facts_of(each, emulate.Facts, step).language["compile"] for each in (project, split))
        assert several.kl == pytest.approx(one.kl, abs=1e-4)


def test_what_calibration_saw_is_in_the_models_own_template(project: Project) -> None:
    facts = facts_of(project, ingest.Facts, "ingest/tiny/model").language

    assert facts is not None
    assert (facts.layers, facts.kv_heads, facts.head_dim) == (2, 2, 16)
    assert len(facts.stops) == 2


def test_a_divergence_that_is_too_large_fails_the_build_by_name(project: Project, tmp_path: Path) -> None:
    strict = project.copy(tmp_path / "strict")
    strict.write("configs/tiny.yaml", CONFIG.replace("kl: 0.1", "kl: 0.0000001"))

    run = strict.doit("build:tiny", check=False)

    assert run.status == 16
    assert "the quantization rung misses its threshold: a divergence of" in run.text
    assert not run.built  # the gate judges what is there


def test_weights_of_4_bits_are_rounded_by_what_conversations_show(project: Project, tmp_path: Path) -> None:
    four = project.copy(tmp_path / "four")
    lines = CONFIG.replace("kl: 0.1, top1: 0.8, perplexity: 0.1", "kl: 1, top1: 0.3, perplexity: 1")
    four.write("configs/tiny.yaml", f"{lines}quantization: {{weights: {{dtype: int4, block: 32}}, rounding: gptq}}\n")

    four.doit("build:tiny")

    looked_at = facts_of(four, correlate.Facts, "correlate/tiny/model")
    assert looked_at.weights == 2 * 7 + 1
    assert looked_at.samples["8x24"] == 6
    assert looked_at.samples["1x31"] == 0  # prefill reads the same tokens
    for part in facts_of(four, quantize.Facts, "quantize/tiny/model").parts.values():
        assert part.facts.constants["int4"].tensors >= 2 * 6
    made = facts_of(four, context.Facts, "context/tiny/model/buckets/snapdragon-x-elite")
    assert {part.facts.partitions for part in made.parts.values()} == {1}


def test_a_damaged_file_is_refused_by_name(project: Project, tmp_path: Path) -> None:
    broken = project.copy(tmp_path / "broken")
    path = broken.root / "models" / "tiny" / "tiny.gguf"
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])

    run = broken.doit("build:tiny", check=False)

    assert run.status == 12
    assert "tiny.gguf is not a GGUF file, or is damaged" in run.text


def test_the_projects_own_conversations_can_be_read() -> None:
    from pipeline.inputs.samples.chat import messages_of

    lines = (ROOT / "calibration" / "chat" / "chats.jsonl").read_text("utf-8").splitlines()
    assert len(lines) >= 16
    assert all(messages_of(line, "chats.jsonl") for line in lines)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ("context: 4096, prefill: 8", "the context of 4096 tokens is longer than tiny was made for"),
        ("context: 32, prefill: 8, parts: 4", "tiny can't be split into 4 parts"),
    ],
)
def test_what_the_model_can_not_do_is_told_before_any_work(
    asked: str, text: str, project: Project, tmp_path: Path
) -> None:
    longer = project.copy(tmp_path / "longer")
    longer.write("configs/tiny.yaml", CONFIG.replace("context: 32, prefill: 8", asked))

    run = longer.doit("build:tiny", check=False)

    assert run.status == 10
    assert text in run.text
    assert not run.built


def test_several_contexts_share_their_weights(project: Project, tmp_path: Path) -> None:
    several = project.copy(tmp_path / "several")
    several.write("configs/tiny.yaml", CONFIG.replace("context: 32, prefill: 8", "context: [32, 48], prefill: [4, 8]"))

    several.doit("build:tiny")

    made = facts_of(several, context.Facts, "context/tiny/model/buckets/snapdragon-x-elite").parts
    assert {*made} == {"1x31", "1x47", "4x28", "4x44", "8x24", "8x40"}
    assert len({binary for part in made.values() for binary in part.facts.binaries}) == 1
    one = project.root / "artifacts" / "tiny" / "snapdragon-x-elite" / "model_ctx_qnn.bin"
    all_of_them = several.root / "artifacts" / "tiny" / "snapdragon-x-elite" / "model_ctx_qnn.bin"
    assert all_of_them.stat().st_size < 2 * one.stat().st_size  # a graph of so few weights is mostly code


def test_weights_of_4_bits_with_minima_keep_their_numbers(project: Project, tmp_path: Path) -> None:
    fours = project.copy(tmp_path / "fours")
    tiny_gguf(fours.root / "models" / "tiny" / "tiny.gguf", in_fours=True)
    blocks = "{dtype: int4, block: 32}"
    head = "overrides: [{nodes: [/head/product], weights: int8}]"  # of which the file has floats
    fours.write("configs/tiny.yaml", f"{CONFIG}quantization: {{weights: {blocks}, {head}}}\n")

    fours.doit("verify:tiny/model/8x24", "emulate:tiny/model/8x24/snapdragon-x-elite")

    rewritten = facts_of(fours, rewrite.Facts, "rewrite/tiny/model/8x24")
    assert rewritten.applied["separate_middles"] == 2 * 7
    assert facts_of(project, rewrite.Facts, "rewrite/tiny/model/8x24").applied.get("separate_middles", 0) == 0
    ladder = facts_of(fours, verify.Facts, "verify/tiny/model/8x24").language
    assert ladder["rewrite"].kl == pytest.approx(0, abs=1e-5)
    # As with 8 bits, as no weight of a layer is rounded; 0.07 if all are.
    assert ladder["quantization"].kl == pytest.approx(0, abs=0.02)
    emulated = facts_of(fours, emulate.Facts, "emulate/tiny/model/8x24/snapdragon-x-elite").language
    assert emulated["compile"].kl == pytest.approx(0, abs=0.03)
