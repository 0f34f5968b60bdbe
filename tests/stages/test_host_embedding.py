"""A tiny model whose table of embeddings stays on the host: on the CPU, by both engines, in a release and in a chat."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from pipeline.contracts import context, converse, emulate, ingest, quantize, verify
from pipeline.contracts.language import LanguageFacts, Lengths
from pipeline.contracts.target import HtpTarget
from pipeline.graph.cpu import load_session
from pipeline.graph.cpu import run as run_on_cpu
from pipeline.graph.language.host_table import rows_of
from pipeline.graph.language.speaker import RunnableGraph, Speaker
from pipeline.inputs.gguf.source import gguf_source
from pipeline.qnn.engines import asking
from pipeline.qnn.engines.emulated_loop import answer
from pipeline.qnn.engines.graphs import read_graphs
from pipeline.qnn_release import DamagedError, Release
from pipeline.store.manifests import read_manifest
from tests.support.language_project import CONFIG, built_with, language_project
from tests.support.project import Project

pytestmark = pytest.mark.slow
TARGET = HtpTarget(60, 73)
ON_HOST = CONFIG.replace("prefill: 8}", "prefill: 8, embedding: host}")
TABLE_BYTES = 2 * 288 * 64
PROMPT = [264, *range(40, 60)]
RELEASED = "artifacts/releases/tiny-1.0.qnn.zip"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """With a binary for each graph, as the emulator takes no other."""
    made = language_project(tmp_path_factory.mktemp("on-host"))
    made.write("configs/tiny.yaml", ON_HOST.replace("targets:", "packing: separate\ntargets:"))
    made.doit("build:tiny")
    return made


def facts_of(project: Project, step: str) -> Any:
    manifest = read_manifest(project.root / ".build" / "steps" / f"{step}.json")
    assert manifest is not None
    return manifest.facts


def language_of(project: Project) -> LanguageFacts:
    found = ingest.Facts.from_json(facts_of(project, "ingest/tiny/model")).language
    assert found is not None
    return found


def contexts_of(project: Project) -> Path:
    return project.root / "artifacts" / "tiny" / "snapdragon-x-elite"


def test_contexts_take_rows_and_the_table_lies_beside_them(project: Project) -> None:
    for bucket, tokens in (("1x31", 1), ("8x24", 8)):
        made = context.Facts.from_json(facts_of(project, f"context/tiny/model/{bucket}/snapdragon-x-elite"))
        (part,) = made.parts.values()
        given = {spec.name: (spec.dtype, [*spec.shape]) for spec in part.facts.inputs}
        assert given["inputs_embeds"] == ("uint16", [1, tokens, 64])
        assert "input_ids" not in given
        assert [(node.op, node.edge) for node in part.facts.cpu_nodes] == [("DequantizeLinear", True)]
    manifest = json.loads((contexts_of(project) / "manifest.json").read_text("utf-8"))
    assert manifest["components"]["model"]["engines"]["files"]["embedding.bin"]["bytes"] == TABLE_BYTES
    assert (contexts_of(project) / "embedding.bin").stat().st_size == TABLE_BYTES


def test_every_row_is_that_of_the_source_also_of_tokens_that_calibration_never_saw(project: Project) -> None:
    source = gguf_source(project.root / "models" / "tiny" / "tiny.gguf")
    numbers = source.weights.pieces("token_embd.weight").array().reshape(288, 64)
    edge = quantize.Facts.from_json(facts_of(project, "quantize/tiny/model")).parts["8x24"].facts.edges["inputs_embeds"]

    rows = np.fromfile(contexts_of(project) / "embedding.bin", "<u2").reshape(288, 64).astype(np.float64)

    np.testing.assert_allclose((rows - edge.zero_point) * edge.scale, numbers, atol=0.501 * edge.scale)


def test_it_is_as_near_to_the_original_as_with_the_table_in_the_graph(project: Project, tmp_path: Path) -> None:
    inside = project.copy(tmp_path / "inside")
    inside.write("configs/tiny.yaml", CONFIG)
    inside.doit("verify:tiny/model/8x24", "verify:tiny/model/1x31")

    for bucket in ("8x24", "1x31"):
        step = f"verify/tiny/model/{bucket}"
        one, other = (verify.Facts.from_json(facts_of(each, step)).language for each in (project, inside))
        assert one["quantization"].tokens == other["quantization"].tokens
        assert one["quantization"].kl == pytest.approx(other["quantization"].kl, abs=5e-4)
        assert one["quantization"].top1 == 1


def test_the_emulator_is_measured_on_rows(project: Project) -> None:
    for bucket in ("8x24", "1x31"):
        found = emulate.Facts.from_json(facts_of(project, f"emulate/tiny/model/{bucket}/snapdragon-x-elite"))
        kl = found.language["compile"].kl
        assert kl is not None
        assert kl < 0.01


def test_a_build_asks_both_engines(project: Project) -> None:
    facts = converse.Facts.from_json(facts_of(project, "converse/tiny/model/snapdragon-x-elite"))

    assert len(facts.expected) == 3
    assert {engine: spoken.tokens for engine, spoken in facts.engines.items()} == {
        "genie": facts.expected,
        "genai": facts.expected,
    }
    assert facts.unasked == {}


def test_engines_look_rows_up_and_a_table_of_other_rows_changes_what_they_say(project: Project, tmp_path: Path) -> None:
    # Genie and onnxruntime-genai take any rows: that these are the model's own, the ladder shows.
    made = []
    for bucket in ("1x31", "8x24"):
        (part,) = context.Facts.from_json(
            facts_of(project, f"context/tiny/model/{bucket}/snapdragon-x-elite")
        ).parts.values()
        made.append((contexts_of(project), part.facts))
    graphs = read_graphs(made)
    turned = tmp_path / "turned"
    shutil.copytree(contexts_of(project), turned)
    rows = np.fromfile(turned / "embedding.bin", "<u2").reshape(288, 64)
    rows[::-1].tofile(turned / "embedding.bin")

    said = {}
    for folder in (contexts_of(project), turned):
        work = {name: tmp_path / f"{folder.name}-{name}" for name in ("loop", "genie", "genai")}
        for path in work.values():
            path.mkdir()
        loop = answer(folder, language_of(project), graphs, PROMPT, 6, TARGET, work["loop"])
        genie = asking.ask_genie(folder, work["genie"], PROMPT, 6)
        genai = asking.ask_genai(folder, work["genai"], PROMPT, 6)
        assert (genie.refused, genie.tokens) == ("", loop)
        assert (genai.refused, genai.tokens) == ("", loop)
        said[folder.name] = loop

    assert said["turned"] != said["snapdragon-x-elite"]


def test_a_shared_binary_is_smaller_by_the_table(project: Project, tmp_path: Path) -> None:
    sizes = []
    for name, config in (("host", ON_HOST), ("inside", CONFIG)):
        made = project.copy(tmp_path / name)
        made.write("configs/tiny.yaml", config)
        made.doit("context:tiny/model/buckets/snapdragon-x-elite")
        facts = context.Facts.from_json(facts_of(made, "context/tiny/model/buckets/snapdragon-x-elite"))
        assert {part.facts.partitions for part in facts.parts.values()} == {1}
        manifest = read_manifest(made.root / ".build/steps/context/tiny/model/buckets/snapdragon-x-elite.json")
        assert manifest is not None
        sizes.append(sum(entry.bytes for file, entry in manifest.files.items() if file.endswith(".bin")))

    assert sizes[1] - sizes[0] == pytest.approx(TABLE_BYTES, abs=TABLE_BYTES / 4)


def test_parts_take_rows_too(project: Project, tmp_path: Path) -> None:
    split = project.copy(tmp_path / "split")
    split.write("configs/tiny.yaml", ON_HOST.replace("embedding: host}", "embedding: host, parts: 2}"))

    split.doit("build:tiny")

    for bucket in ("8x24", "1x31"):
        step = f"emulate/tiny/model/{bucket}/snapdragon-x-elite"
        one, several = (emulate.Facts.from_json(facts_of(each, step)).language["compile"] for each in (project, split))
        assert several.kl == pytest.approx(one.kl, abs=1e-4)


def test_doit_chat_answers(project: Project) -> None:
    run = project.doit("chat:tiny", "--say", "then", "--tokens", "3")

    assert "tokens a second, on the QDQ model on this machine's CPU" in run.text


def test_doit_chat_answers_on_the_emulator(project: Project) -> None:
    run = project.doit("chat:tiny", "--emulator", "--say", "then", "--tokens", "2")

    assert "2 answered" in run.text


@pytest.mark.parametrize("engine", [None, "numpy"])
def test_a_release_has_the_table_once_and_answers_as_the_qdq_models_do(
    project: Project, tmp_path: Path, engine: Literal["numpy"] | None
) -> None:
    project.doit("package:tiny")

    with zipfile.ZipFile(project.root / RELEASED) as archive:
        assert [name for name in archive.namelist() if name.endswith("embedding.bin")] == [
            "contexts/snapdragon-x-elite/embedding.bin"
        ]
    with Release.open(project.root / RELEASED, device="cpu", cache=tmp_path / "cache") as release:
        made = [*release.chat(engine=engine).generate(PROMPT, max_tokens=6)]
    project.doit("verify-release", RELEASED)

    assert tuple(made) == on_cpu(project)


def on_cpu(project: Project) -> tuple[int, ...]:
    """What the pipeline's own loop over the QDQ models answers."""
    parts = quantize.Facts.from_json(facts_of(project, "quantize/tiny/model")).parts
    folder, language = project.root / "artifacts" / "tiny" / "qdq", language_of(project)
    rows = rows_of(folder, language)

    def graph(sequence: int, past: int) -> RunnableGraph:
        session = load_session(folder / f"model_{sequence}x{past}.onnx")
        return RunnableGraph(Lengths(sequence, past), lambda feed: run_on_cpu(session, rows(feed)))

    speaker = Speaker(language, graph(1, 31), graph(8, 24), parts["8x24"].facts.edges)
    speaker.read(PROMPT)
    return tuple(speaker.answer(6))


def test_a_release_with_a_damaged_table_does_not_answer(project: Project, tmp_path: Path) -> None:
    project.doit("package:tiny")
    folder = tmp_path / "unpacked"
    with zipfile.ZipFile(project.root / RELEASED) as archive:
        archive.extractall(folder)
    table = folder / "contexts/snapdragon-x-elite/embedding.bin"
    table.write_bytes(bytes([table.read_bytes()[0] ^ 1]) + table.read_bytes()[1:])

    with Release.open(folder, device="cpu") as release, pytest.raises(DamagedError, match="embedding"):
        release.chat(engine="numpy")


def test_a_record_is_of_rows_and_replays(project: Project) -> None:
    project.doit("package:tiny")

    run = project.doit("record", RELEASED)

    assert "runs on the emulator" in run.text
    recorded = project.root / RELEASED.replace(".zip", "-record.zip")
    project.doit("verify-release", "--replay", str(recorded), RELEASED)


@pytest.mark.parametrize(
    ("module", "old", "new", "said"),
    [
        ("genie_config", '"size": facts.hidden', '"size": 32', "size of genie_config.json is 32; a row has 64"),
        ("genie_config", "-rows.zero_point", "0", "offset of genie_config.json is 0"),
    ],
)
def test_what_is_written_wrongly_stops_the_build_by_name(
    project: Project, tmp_path: Path, module: str, old: str, new: str, said: str
) -> None:
    run = built_with(project, tmp_path, f"pipeline/qnn/engines/{module}.py", old, new)

    assert run.status == 16
    assert f"error: what engines would read is wrong: {said}" in run.text
