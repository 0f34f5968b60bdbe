"""Genie and onnxruntime-genai themselves, on the emulator, over what the command line builds of a tiny model."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jsonschema
import pytest

from pipeline.contracts import bundle, context, converse, ingest, quantize
from pipeline.contracts.language import LanguageFacts, Lengths
from pipeline.contracts.target import HtpTarget
from pipeline.graph.cpu import load_session
from pipeline.graph.cpu import run as run_on_cpu
from pipeline.graph.language.speaker import RunnableGraph, Speaker
from pipeline.qnn.engines import asking, genai_config, genie_config
from pipeline.qnn.engines.emulated_loop import answer
from pipeline.qnn.engines.graphs import SpokenGraph, read_graphs
from pipeline.qnn_release import LoadError, Release
from pipeline.store.manifests import read_manifest
from tests.support.language_project import CONFIG, built_with, language_project
from tests.support.project import ROOT, Project

pytestmark = pytest.mark.slow
TARGET = HtpTarget(60, 73)
TIMES = 3
PROMPTS = ([264, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14], [264, *range(40, 60)], [256, 257, 100])
"""Of two windows, of three that are nearly full, and of less than one."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = language_project(tmp_path_factory.mktemp("engines"))
    made.doit("build:tiny")
    return made


@dataclass(frozen=True)
class Opened:
    """Artifacts that the emulator takes, each context with a binary of its own."""

    folder: Path
    graphs: tuple[SpokenGraph, ...]
    facts: LanguageFacts


@pytest.fixture(scope="module")
def opened(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Opened:
    separate = project.copy(tmp_path_factory.mktemp("separate") / "project")
    config = CONFIG.replace("targets:", "packing: separate\ntargets:")
    separate.write("configs/tiny.yaml", config)
    separate.doit("build:tiny")
    folder = separate.root / "artifacts" / "tiny" / "snapdragon-x-elite"
    steps = separate.root / ".build" / "steps"
    made = []
    for bucket in ("1x31", "8x24"):
        manifest = read_manifest(steps / "context" / "tiny" / "model" / bucket / "snapdragon-x-elite.json")
        assert manifest is not None
        made += [(folder, part.facts) for part in manifest.read(context.Facts.from_json).parts.values()]
    ingested = read_manifest(steps / "ingest" / "tiny" / "model.json")
    assert ingested is not None
    facts = ingested.read(ingest.Facts.from_json).language
    assert facts is not None
    return Opened(folder, read_graphs(made), facts)


def manifest_of(project: Project) -> Any:
    path = project.root / "artifacts" / "tiny" / "snapdragon-x-elite" / "manifest.json"
    return json.loads(path.read_text("utf-8"))


def test_a_build_asks_both_engines_and_holds_their_answers_against_the_loop(project: Project) -> None:
    manifest = read_manifest(project.root / ".build/steps/converse/tiny/model/snapdragon-x-elite.json")
    assert manifest is not None
    facts = manifest.read(converse.Facts.from_json)

    assert len(facts.expected) == TIMES
    assert {engine: spoken.tokens for engine, spoken in facts.engines.items()} == {
        "genie": facts.expected,
        "genai": facts.expected,
    }
    assert all(spoken.opened for spoken in facts.engines.values())
    assert facts.engines["genai"].texts == (2, 2)
    assert facts.differences == ()  # of the shared binary and the graphs by themselves
    assert facts.unasked == {}


def test_artifacts_have_all_that_engines_open_and_say_what_was_shown(project: Project) -> None:
    folder = project.root / "artifacts" / "tiny" / "snapdragon-x-elite"
    manifest = manifest_of(project)

    jsonschema.validate(manifest, json.loads((ROOT / "docs" / "manifest.schema.json").read_text("utf-8")))
    said = manifest["components"]["model"]["engines"]
    assert {*said["files"]} <= {path.name for path in folder.iterdir()}
    assert said["genie"] == {
        "config": "genie_config.json",
        "proof": {
            "by": "Genie 1.21.0 on QNN's emulator",
            "opened": "the same graphs, each with a binary of its own",
            "answered": {"graphs": "8x24", "prompt": 10, "tokens": TIMES},
        },
    }
    assert said["genai"]["proof"]["by"] == "onnxruntime-genai 0.16.0 on QNN's emulator"


def test_damaged_files_of_engines_are_put_back(project: Project, tmp_path: Path) -> None:
    broken = project.copy(tmp_path / "project")
    path = broken.root / "artifacts" / "tiny" / "snapdragon-x-elite" / "genie_config.json"
    whole = path.read_bytes()
    path.write_bytes(b"{}")

    run = broken.doit("build:tiny")

    assert "damaged: artifacts/tiny/snapdragon-x-elite/genie_config.json" in run.text
    assert path.read_bytes() == whole


def test_a_release_carries_all_of_it(project: Project) -> None:
    project.doit("package:tiny")

    path = project.root / "artifacts" / "releases" / "tiny-1.0.qnn.zip"
    with zipfile.ZipFile(path) as archive:
        index = json.loads(archive.read("release.json"))
        names = {*archive.namelist()}
    jsonschema.validate(index, json.loads((ROOT / "pipeline/release/release.schema.json").read_text("utf-8")))
    said = index["components"]["model"]["engines"]["snapdragon-x-elite"]
    assert {said["genai"]["config"], said["genie"]["config"]} <= names
    assert said["genie"]["proof"]["answered"]["tokens"] == TIMES
    assert {f"contexts/snapdragon-x-elite/{name}" for name in ("inputs.onnx", "tokenizer.json")} <= names
    project.doit("verify-release", str(path))


def test_without_the_emulator_the_manifest_claims_nothing(project: Project, tmp_path: Path) -> None:
    unmeasured = project.copy(tmp_path / "project")
    unmeasured.write("configs/tiny.yaml", f"{CONFIG}verification: {{emulator_samples: 0}}\n")

    unmeasured.doit("build:tiny")

    said = manifest_of(unmeasured)["components"]["model"]["engines"]
    for engine in ("genai", "genie"):
        assert said[engine]["proof"] is None
        assert said[engine]["why"] == "verification or the emulator is switched off in the config"


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: f"{len(prompt)} tokens")
def test_the_folder_opens_as_it_is_and_all_three_say_the_same(
    opened: Opened, tmp_path: Path, prompt: list[int]
) -> None:
    for name in ("loop", "genie", "genai"):
        (tmp_path / name).mkdir()

    expected = answer(opened.folder, opened.facts, opened.graphs, prompt, 6, TARGET, tmp_path / "loop")
    genie = asking.ask_genie(opened.folder, tmp_path / "genie", prompt, 6)
    genai = asking.ask_genai(opened.folder, tmp_path / "genai", prompt, 6)

    assert len(expected) == 6
    assert (genie.refused, genie.tokens) == ("", expected)
    assert (genai.refused, genai.tokens) == ("", expected)


def changed(opened: Opened, tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    folder = tmp_path / "changed"
    shutil.copytree(opened.folder, folder)
    config = json.loads((folder / genie_config.CONFIG).read_text("utf-8"))
    change(config["dialog"])
    (folder / genie_config.CONFIG).write_text(json.dumps(config), "utf-8")
    (tmp_path / "work").mkdir()
    return folder


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda dialog: dialog.update(unknown=1), "genie_config.json: error"),
        (lambda dialog: dialog["context"].update(size=33), "GenieDialog_create: error"),
        (lambda dialog: dialog["engine"]["model"]["positional-encoding"].update({"rope-dim": 16}), "ShapeError"),
        (
            lambda dialog: dialog["engine"]["model"]["binary"].update({"ctx-bins": ["none.bin"]}),
            "Can't access model file",
        ),
        (lambda dialog: dialog["tokenizer"].update(path="none.json"), "Failed to open input file: none.json"),
    ],
)
def test_genie_itself_names_what_it_validates(
    opened: Opened, tmp_path: Path, change: Callable[[dict[str, Any]], None], said: str
) -> None:
    folder = changed(opened, tmp_path, change)

    assert said in asking.ask_genie(folder, tmp_path / "work").refused


def test_genie_passes_a_wrong_theta_and_answers_something_else(opened: Opened, tmp_path: Path) -> None:
    # The reason why bundle_checks looks: nothing else would.
    rope = {"rope-theta": 20000}
    folder = changed(opened, tmp_path, lambda dialog: dialog["engine"]["model"]["positional-encoding"].update(rope))
    (tmp_path / "right").mkdir()

    right = asking.ask_genie(opened.folder, tmp_path / "right", PROMPTS[0], 6)
    wrong = asking.ask_genie(folder, tmp_path / "work", PROMPTS[0], 6)

    assert (right.refused, wrong.refused) == ("", "")
    assert wrong.tokens != right.tokens


@pytest.mark.parametrize(
    ("module", "old", "new", "said"),
    [
        ("genie_config", '_whole(facts.rotations[""].theta)', "20000", "rope-theta of genie_config.json is 20000"),
        ("genie_config", '"soc_model": graphs[0].soc_model', '"soc_model": 57', "soc_model of htp_backend_ext_config"),
        ("genai_config", "key.zero_point if key else 0", "0", "pad_value of genai_config.json is 0"),
    ],
)
def test_what_is_written_wrongly_stops_the_build_by_name(
    project: Project, tmp_path: Path, module: str, old: str, new: str, said: str
) -> None:
    run = built_with(project, tmp_path, f"pipeline/qnn/engines/{module}.py", old, new)

    assert run.status == 16
    assert f"error: what engines would read is wrong: {said}" in run.text


def test_a_process_that_an_engine_ends_is_an_answer(opened: Opened, tmp_path: Path) -> None:
    folder = changed(opened, tmp_path, lambda dialog: None)
    (folder / genai_config.CONFIG).write_text("{", "utf-8")

    assert asking.ask_genai(folder, tmp_path / "work", PROMPTS[0], 1).refused != ""


def test_doit_chat_answers_on_the_cpu_and_says_on_what(project: Project) -> None:
    run = project.doit("chat:tiny", "--say", "then", "--tokens", "3")

    assert "tokens read in" in run.text
    assert "tokens a second, on the QDQ model on this machine's CPU" in run.text
    assert "NPU" not in run.text


def test_doit_chat_answers_on_the_emulator(project: Project) -> None:
    run = project.doit("chat:tiny", "--emulator", "--say", "then", "--tokens", "2")

    assert "2 answered" in run.text
    assert "on QNN's emulator of the NPU, on this machine's CPU" in run.text


def test_doit_chat_refuses_a_question_longer_than_the_context(project: Project) -> None:
    run = project.doit("chat:tiny", "--say", "then and there " * 20, check=False)

    assert run.status == 10
    assert "error: the question has" in run.text
    assert "Traceback" not in run.text


@pytest.mark.parametrize("engine", [None, "numpy"])
def test_a_release_answers_as_the_qdq_models_do(
    project: Project, tmp_path: Path, engine: Literal["numpy"] | None
) -> None:
    project.doit("package:tiny")
    path = project.root / "artifacts" / "releases" / "tiny-1.0.qnn.zip"

    with Release.open(path, device="cpu", cache=tmp_path / "cache") as release:
        chat = release.chat(engine=engine)
        made = [*chat.generate(PROMPTS[0], max_tokens=6)]
        assert (chat.engine, chat.runs_on) == ("numpy", "the CPU, as QDQ model")
        assert [session.runs for session in release.report().sessions] == [5, 2]

    steps = project.root / ".build" / "steps"
    manifest = read_manifest(steps / "ingest" / "tiny" / "model.json")
    assert manifest is not None
    language = manifest.read(ingest.Facts.from_json).language
    assert language is not None
    assert tuple(made) == on_cpu(project, language)


def on_cpu(project: Project, language: LanguageFacts) -> tuple[int, ...]:
    """What the pipeline's own loop over the QDQ models answers to the first prompt."""
    manifest = read_manifest(project.root / ".build" / "steps" / "quantize" / "tiny" / "model.json")
    assert manifest is not None
    parts = manifest.read(quantize.Facts.from_json).parts
    folder = project.root / "artifacts" / "tiny" / "qdq"

    def graph(sequence: int, past: int) -> RunnableGraph:
        session = load_session(folder / f"model_{sequence}x{past}.onnx")
        return RunnableGraph(Lengths(sequence, past), lambda feed: run_on_cpu(session, feed))

    speaker = Speaker(language, graph(1, 31), graph(8, 24), parts["8x24"].facts.edges)
    speaker.read(PROMPTS[0])
    return tuple(speaker.answer(6))


def test_onnxruntime_genai_is_refused_where_it_can_run_no_context(project: Project, tmp_path: Path) -> None:
    project.doit("package:tiny")
    path = project.root / "artifacts" / "releases" / "tiny-1.0.qnn.zip"

    with (
        Release.open(path, device="cpu", cache=tmp_path / "cache") as release,
        pytest.raises(LoadError, match="onnxruntime-genai can't answer here"),
    ):
        release.chat(engine="genai")


def test_of_a_model_in_parts_the_manifest_claims_nothing(project: Project, tmp_path: Path) -> None:
    split = project.copy(tmp_path / "project")
    split.edit("configs/tiny.yaml", "prefill: 8}", "prefill: 8, parts: 2}")

    split.doit("build:tiny")

    said = manifest_of(split)["components"]["model"]["engines"]
    for engine in ("genai", "genie"):
        assert said[engine]["proof"] is None
        assert said[engine]["why"].startswith("the model is in 2 parts")
    config = json.loads(
        (split.root / "artifacts" / "tiny" / "snapdragon-x-elite" / "genie_config.json").read_text("utf-8")
    )
    listed = config["dialog"]["engine"]["model"]["binary"]["ctx-bins"]
    assert listed == ["model_1_of_2_qnn.bin", "model_2_of_2_qnn.bin"]


def test_of_several_lengths_both_engines_answer_on_the_longest(project: Project, tmp_path: Path) -> None:
    several = project.copy(tmp_path / "project")
    # Longer than a twin, whose 16x48 answers in place of 16x112.
    several.edit("configs/tiny.yaml", "{context: 32, prefill: 8}", "{context: [32, 128], prefill: [8, 16]}")

    several.doit("build:tiny")

    said = manifest_of(several)["components"]["model"]["engines"]
    for engine in ("genai", "genie"):
        assert said[engine]["proof"]["answered"] == {
            "graphs": "16x48, weights by channel",
            "prompt": 18,
            "tokens": TIMES,
        }


def test_the_bundle_step_finds_no_fault_and_says_what_it_wrote(project: Project) -> None:
    manifest = read_manifest(project.root / ".build/steps/bundle/tiny/model/snapdragon-x-elite.json")
    assert manifest is not None
    facts = manifest.read(bundle.Facts.from_json)

    assert facts.faults == ()
    assert facts.configs == {"genai": "genai_config.json", "genie": "genie_config.json"}
    assert facts.pad == 263
