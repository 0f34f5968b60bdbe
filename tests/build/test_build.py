"""The whole line, by the real command line, with the real compiler."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from tests.support.project import ROOT, Project

pytestmark = pytest.mark.slow


def test_a_build_leaves_artifacts_for_each_bucket_and_target(bert_built: Project) -> None:
    names = set(bert_built.artifacts())
    for target in ("snapdragon-x-elite", "sm8650"):
        for bucket in (16, 32):
            assert f"bert/{target}/encoder_{bucket}_ctx.onnx" in names
            assert f"bert/{target}/encoder_{bucket}_ctx_qnn.bin" in names
        assert f"bert/{target}/manifest.json" in names
    assert {"bert/qdq/encoder_16.onnx", "bert/qdq/encoder_32.onnx", "bert/qdq/encoder_weights.bin"} <= names


@pytest.mark.parametrize("target", ["snapdragon-x-elite", "sm8650"])
def test_an_application_loads_and_runs_what_the_manifest_names(
    bert_built: Project, target: str, tmp_path: Path
) -> None:
    script = tmp_path / "load_artifacts.py"
    script.write_text((ROOT / "tests" / "support" / "load_artifacts.py").read_text("utf-8"))
    folder = bert_built.root / "artifacts" / "bert" / target
    done = subprocess.run(
        [sys.executable, "-I", str(script), str(folder)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    ran = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [bucket["axes"] for bucket in ran] == [{"sequence": 16}, {"sequence": 32}]
    assert all(bucket["finite"] for bucket in ran)
    assert ran[0]["shapes"] == {"last_hidden_state": [1, 16, 64]}


def test_the_manifest_says_what_was_built(bert_built: Project) -> None:
    manifest = json.loads((bert_built.root / "artifacts/bert/sm8650/manifest.json").read_text("utf-8"))
    assert manifest["targets"] == [{"name": "sm8650", "soc": "SM8650", "soc_model": 57, "htp_arch": 75, "vtcm_mb": 8}]
    assert set(manifest["tools"]) == {"onnxruntime", "onnxruntime-qnn", "qairt"}
    bucket = manifest["components"]["encoder"]["buckets"][0]
    assert bucket["partitions"] == 1
    assert [node["op"] for node in bucket["cpu_nodes"]] == ["DequantizeLinear"]
    assert "graph output" in bucket["cpu_nodes"][0]["reason"]
    assert bucket["quantization"]["scheme"] == "w8a16 in blocks of 32"
    assert bucket["inputs"][0] == {"name": "input_ids", "dtype": "int64", "shape": [1, 16], "range": [0, 139]}


@pytest.mark.parametrize("target", ["snapdragon-x-elite", "sm8650"])
def test_the_manifest_is_what_its_schema_says(bert_built: Project, target: str) -> None:
    schema = json.loads((ROOT / "docs" / "manifest.schema.json").read_text("utf-8"))
    manifest = json.loads((bert_built.root / "artifacts" / "bert" / target / "manifest.json").read_text("utf-8"))
    validator = jsonschema.Draft202012Validator(schema)
    assert [error.message for error in validator.iter_errors(manifest)] == []
    assert not validator.is_valid(manifest | {"surprise": 1}), "the schema is closed"


def test_two_builds_in_two_folders_are_byte_identical(
    bert_built: Project, bert_project: Project, tmp_path: Path
) -> None:
    other = bert_project.copy(tmp_path / "another place" / "프로젝트")
    other.store = tmp_path / "store of its own"
    run = other.doit("-n", "2", "build")
    assert not run.restored
    first, second = bert_built.artifacts(), other.artifacts()
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []


def test_every_bucket_has_the_same_quantized_weights(bert_built: Project) -> None:
    manifest = json.loads((bert_built.root / "artifacts/bert/qdq/manifest.json").read_text("utf-8"))
    digests = {
        bucket["files"]["encoder_weights.bin"]["sha256"] for bucket in manifest["components"]["encoder"]["buckets"]
    }
    data = (bert_built.root / "artifacts/bert/qdq/encoder_weights.bin").read_bytes()
    assert digests == {hashlib.sha256(data).hexdigest()}


def test_a_second_build_runs_nothing_and_says_so(project: Project) -> None:
    run = project.doit("build")
    assert not run.built
    assert not run.restored
    assert "Nothing to do: all 22 steps are current." in run.text
    assert "cached" not in run.text
    assert "report.html has the tables" in run.text
    assert "cached" in project.doit("context").text, "who asks for a stage gets its table"


@pytest.mark.parametrize("command", [["list"], ["build"]])
def test_listing_and_a_build_with_nothing_to_do_load_no_onnx(project: Project, command: list[str]) -> None:
    project.doit("build")  # in a new place every file is read once
    (project.root / "spy.py").write_text(
        "import sys, doit.doit_cmd\n"
        "try:\n    doit.doit_cmd.DoitMain().run(sys.argv[1:])\n"
        "finally:\n    print('LOADED', sorted(n for n in ('onnx', 'onnxruntime', 'numpy', 'huggingface_hub', 'rich')"
        " if n in sys.modules))\n"
    )
    environment = {"PIPELINE_STORE": str(project.store), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "spy.py", *command],
        cwd=project.root,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "LOADED []" in done.stdout


def test_artifacts_that_were_damaged_or_deleted_are_put_back_without_running_anything(project: Project) -> None:
    before = project.artifacts()
    folder = project.root / "artifacts" / "bert" / "sm8650"
    (folder / "encoder_16_ctx.onnx").unlink()
    (folder / "encoder_32_ctx_qnn.bin").write_bytes(b"half")
    (project.root / "artifacts/bert/qdq/encoder_weights.bin").write_bytes(b"other")
    assert not project.doit("build").built
    assert project.artifacts() == before


def test_a_lost_doit_database_costs_nothing(project: Project) -> None:
    (project.root / ".build" / "doit.json").unlink()
    run = project.doit("build")
    assert not run.built
    assert not run.restored


def test_a_lost_build_folder_is_restored_from_the_store(project: Project) -> None:
    before = project.artifacts()
    shutil.rmtree(project.root / ".build")
    shutil.rmtree(project.root / "artifacts")
    run = project.doit("build")
    assert not run.built
    assert len(run.restored) == 22
    assert project.artifacts() == before


def test_clean_removes_artifacts_and_nothing_that_is_not_ours(project: Project) -> None:
    kept = project.write("artifacts/bert/sm8650/notes.txt", "mine")
    folder = project.root / "artifacts" / "bert"
    shutil.copytree(folder / "snapdragon-x-elite", folder / "phone")
    foreign = project.write("artifacts/bert/sm8750/manifest.json", '{"mine": 1}')
    copied = {f"bert/phone/{path.name}" for path in (folder / "phone").iterdir()}
    for _ in range(2):  # a build has nothing to remove there either
        project.doit("clean", "build:bert")
        assert set(project.artifacts()) == {"bert/sm8650/notes.txt", "bert/sm8750/manifest.json", *copied}
        project.doit("build")
        assert copied < set(project.artifacts())
        assert foreign.read_text("utf-8") == '{"mine": 1}'
    kept.unlink()
    assert not project.doit("build").built


def test_a_target_that_was_dropped_leaves_no_artifacts(project: Project) -> None:
    project.edit("configs/bert.yaml", "[snapdragon-x-elite, sm8650]", "[sm8650]")
    run = project.doit("build")
    assert not run.built
    assert {name.split("/")[1] for name in project.artifacts()} == {"sm8650", "qdq"}


def test_globs_and_filters_narrow_a_build(bert_project: Project, tmp_path: Path) -> None:
    project = bert_project.copy(tmp_path / "project")
    run = project.doit("context:bert/encoder/16/*")
    assert {name for name in run.built | run.restored if name.startswith("context:")} == {
        "context:bert/encoder/16/snapdragon-x-elite",
        "context:bert/encoder/16/sm8650",
    }
    project.doit("build", "targets=sm8650")
    assert {name.split("/")[1] for name in project.artifacts()} == {"sm8650", "qdq"}
