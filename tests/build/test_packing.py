"""Binaries that buckets or targets share, by the real command line: artifacts, manifests, gates, and the choice."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pipeline.config.load import load
from pipeline.contracts.packing import PackingChoice
from pipeline.errors import ConfigError
from pipeline.plan.planner import plan
from tests.support.encoder_project import CONFIG as BERT
from tests.support.project import ROOT, Project

X_ELITE, SM8650 = "snapdragon-x-elite", "sm8650"
VERIFIED = BERT[BERT.index("verification:") : BERT.index("targets:")]


@pytest.fixture(scope="module")
def bert_here(bert_first: tuple[Project, Project]) -> Project:
    """The built encoder over a store with nothing else: other files pack it, too, and steps are counted here."""
    return bert_first[1]


@pytest.fixture
def project(bert_here: Project, tmp_path: Path) -> Project:
    """A built project of the test's own, with its store."""
    project = bert_here.copy(tmp_path / "project")
    project.store = Path(shutil.copytree(bert_here.store, tmp_path / "store"))
    return project


def contexts(tmp_path: Path, packing: str, text: str = BERT) -> list[str]:
    """The context steps of a config, without their stage and model."""
    path = tmp_path / "configs" / "bert.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{text}packing: {packing}\n", "utf-8")
    return [step.name.removeprefix("bert/encoder/") for step in plan(load(path)) if step.stage == "context"]


def test_each_form_has_its_steps(tmp_path: Path) -> None:
    separate = [f"{bucket}/{target}" for bucket in (16, 32) for target in (X_ELITE, SM8650)]
    assert contexts(tmp_path, "separate") == separate
    assert contexts(tmp_path, "buckets") == [f"buckets/{X_ELITE}", f"buckets/{SM8650}"]
    assert contexts(tmp_path, "socs") == ["16/socs", "32/socs"]
    assert len(contexts(tmp_path, "auto")) == 8


def test_what_there_is_one_of_is_not_shared(tmp_path: Path) -> None:
    one_target = BERT.replace(f"[{X_ELITE}, {SM8650}]", f"[{SM8650}]")
    one_bucket = BERT.replace("[16, 32]", "[32]")
    assert contexts(tmp_path, "socs", one_target) == [f"16/{SM8650}", f"32/{SM8650}"]
    assert contexts(tmp_path, "buckets", one_bucket) == [f"32/{X_ELITE}", f"32/{SM8650}"]
    assert len(contexts(tmp_path, "auto", one_target)) == 3
    assert contexts(tmp_path, "auto", one_target.replace("[16, 32]", "[32]")) == [f"32/{SM8650}"]


def manifest(project: Project, folder: str) -> Any:
    """A manifest of the build, held against its schema."""
    schema = json.loads((ROOT / "docs" / "manifest.schema.json").read_text("utf-8"))
    raw = json.loads((project.root / "artifacts" / "bert" / folder / "manifest.json").read_text("utf-8"))
    jsonschema.Draft202012Validator(schema).validate(raw)
    return raw


def files(project: Project, folder: str) -> list[str]:
    return sorted(path.name for path in (project.root / "artifacts" / "bert" / folder).iterdir())


def total(project: Project, suffix: str = ".bin") -> int:
    """Bytes of all context binaries of the build."""
    built = project.artifacts()
    return sum(len(data) for name, data in built.items() if name.endswith(suffix) and "/qdq/" not in name)


@pytest.mark.slow
def test_buckets_share_a_binary(project: Project) -> None:
    apart = total(project)
    project.write("configs/bert.yaml", f"{BERT}packing: buckets\n")
    run = project.doit("build")

    assert run.stages() == {"context": 2, "emulate": 4}
    expected = ["encoder_16_ctx.onnx", "encoder_32_ctx.onnx", "encoder_ctx_qnn.bin", "manifest.json"]
    for target in (X_ELITE, SM8650):
        assert files(project, target) == expected, "the binaries of the other form are gone"
        component = manifest(project, target)["components"]["encoder"]
        assert component["packing"] == "buckets"
        assert [bucket["axes"] for bucket in component["buckets"]] == [{"sequence": 16}, {"sequence": 32}]
        for bucket in component["buckets"]:
            assert bucket["binaries"] == ["encoder_ctx_qnn.bin"]
            assert set(bucket["files"]) == {bucket["context_model"], "encoder_ctx_qnn.bin"}
            assert bucket["verification"]["emulator"][target]["emulated"] == "plain compile"
    assert total(project) < apart
    assert "16, 32" in run.text, "the table has a row for the shared binary"
    assert "compiled plainly" in run.text

    project.write("configs/bert.yaml", BERT)
    assert not project.doit("build").built, "the other form is still in the store"


@pytest.mark.slow
def test_targets_share_a_binary(project: Project) -> None:
    apart = total(project)
    project.write("configs/bert.yaml", f"{BERT}packing: socs\n")
    run = project.doit("build", f"targets={SM8650}")
    assert run.stages()["context"] == 2
    measured = [step for step in run.built | run.restored if step.startswith("emulate:")]
    assert len(measured) == 4, "what is for several targets is built and proven for all"

    folders = sorted(path.name for path in (project.root / "artifacts" / "bert").iterdir())
    assert folders == ["qdq", "report.html", "socs"]
    found = manifest(project, "socs")
    assert [target["name"] for target in found["targets"]] == [X_ELITE, SM8650]
    for bucket, size in zip(found["components"]["encoder"]["buckets"], (16, 32), strict=True):
        assert bucket["binaries"] == [f"encoder_{size}_ctx_qnn.bin"]
        assert set(bucket["verification"]["emulator"]) == {X_ELITE, SM8650}
    assert total(project) < apart


@pytest.mark.slow
def test_the_smallest_form_is_chosen_and_the_others_make_nothing(project: Project) -> None:
    apart = total(project)
    project.write("configs/bert.yaml", f"{BERT}packing: auto\n")
    run = project.doit("build")

    packing = json.loads((project.root / ".build/steps/packing/bert/encoder.json").read_text("utf-8"))["facts"]
    estimates = packing["estimates"]
    assert packing["chosen"] == min(estimates, key=estimates.get)
    assert 0.7 < estimates["separate"] / apart < 1.3
    assert 0.7 < estimates[packing["chosen"]] / total(project) < 1.3
    for form, size in estimates.items():
        assert f"{form:<10}{size:>15,}" in run.text
    folder = "socs" if packing["chosen"] == "socs" else SM8650
    assert manifest(project, folder)["components"]["encoder"]["packing"] == packing["chosen"]
    again = project.doit("build")
    assert not again.built
    assert not again.restored


def test_of_the_choice_of_a_form_contexts_know_nothing_but_what_was_chosen(tmp_path: Path) -> None:
    contexts(tmp_path, "auto")
    for step in plan(load(tmp_path / "configs" / "bert.yaml")):
        choice = [given.facts for given in step.inputs if given.role == "packing"]
        assert choice == ([PackingChoice] if step.stage == "context" else [])


def test_buckets_can_not_share_weights_on_old_chips(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="buckets can't share weights on sm8350, whose HTP is v68"):
        contexts(tmp_path, "buckets", BERT.replace(X_ELITE, "sm8350"))
    assert contexts(tmp_path, "separate", BERT.replace(X_ELITE, "sm8350"))


@pytest.mark.slow
def test_a_shared_binary_is_held_to_the_thresholds_of_each_of_its_contexts(project: Project) -> None:
    project.write(
        "configs/bert.yaml",
        BERT + "packing: buckets\nquantization: {weights: uint8}\nthresholds: {max_cpu_nodes: 0, compile_db: 99}\n",
    )
    run = project.doit("build", f"targets={SM8650}", check=False)
    assert run.status == 16
    assert "the compile rung misses its threshold" in run.text


@pytest.fixture(scope="module")
def socs(bert_built: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`artifacts/bert/socs` of a build for two targets."""
    project = bert_built.copy(tmp_path_factory.mktemp("socs") / "project")
    unverified = BERT.replace(VERIFIED, "verification: {enabled: false}\n")
    project.write("configs/bert.yaml", f"{unverified}packing: socs\n")
    project.doit("build")
    return project.root / "artifacts" / "bert" / "socs"


def prune(folder: Path, out: Path, *targets: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pipeline.release.prune", str(folder), *targets, "--out", str(out)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_folder_is_pruned_to_the_targets_that_are_kept(socs: Path, tmp_path: Path) -> None:
    done = prune(socs, tmp_path / "one", "SM8650")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads((tmp_path / "one" / "manifest.json").read_text("utf-8"))
    schema = json.loads((ROOT / "docs" / "manifest.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator(schema).validate(found)
    assert [target["name"] for target in found["targets"]] == [SM8650]
    listed = {"manifest.json"}
    for bucket in found["components"]["encoder"]["buckets"]:
        assert bucket["compatibility"].split(":")[4:6] == ["75", "57"]
        for name, entry in bucket["files"].items():
            data = (tmp_path / "one" / name).read_bytes()
            assert entry == {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
            listed.add(name)
            assert not name.endswith(".bin") or len(data) < (socs / name).stat().st_size
    assert {path.name for path in (tmp_path / "one").iterdir()} == listed


@pytest.mark.slow
def test_a_folder_that_can_not_be_pruned_says_why(socs: Path, tmp_path: Path) -> None:
    unknown = prune(socs, tmp_path / "out", "sm9999")
    assert (unknown.returncode, "sm9999" in unknown.stderr) == (10, True)
    other = prune(socs, tmp_path / "out", "sm8750")
    assert (other.returncode, "the binaries are not for sm8750" in other.stderr) == (10, True)
    assert f"they are for {X_ELITE}, {SM8650}" in other.stderr
    inside = prune(socs, socs / "one", SM8650)
    assert (inside.returncode, "in the one that is read" in inside.stderr) == (10, True)
    missing = prune(tmp_path, tmp_path / "out", SM8650)
    assert (missing.returncode, "no manifest of ours" in missing.stderr) == (17, True)
    shutil.copytree(socs, tmp_path / "damaged")
    binary = tmp_path / "damaged" / "encoder_16_ctx_qnn.bin"
    binary.chmod(0o644)
    binary.write_bytes(binary.read_bytes()[:-1] + b"?")
    damaged = prune(tmp_path / "damaged", tmp_path / "out", SM8650)
    assert (damaged.returncode, "is not the file that the manifest names" in damaged.stderr) == (17, True)
    for number, (old, new) in enumerate(
        (
            ('"schema_version": 3', '"schema_version": 2'),
            ('"targets"', '"soc"'),
            ('"files"', '"data"'),
            ('"encoder_', '"../'),
        )
    ):
        shutil.copytree(socs, tmp_path / f"odd{number}")
        path = tmp_path / f"odd{number}" / "manifest.json"
        path.chmod(0o644)
        text = path.read_text("utf-8")
        assert old in text
        path.write_text(text.replace(old, new), "utf-8")
        odd = prune(path.parent, tmp_path / "out", SM8650)
        assert (odd.returncode, "Traceback" in odd.stderr, "no manifest of ours" in odd.stderr) == (17, False, True)
    full = prune(socs, socs, SM8650)
    assert (full.returncode, "in the one that is read" in full.stderr) == (10, True)
    assert not (tmp_path / "out").exists(), "nothing is left of what failed"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    full = prune(socs, tmp_path / "full", SM8650)
    assert (full.returncode, "not empty" in full.stderr) == (10, True)
    assert (tmp_path / "full" / "mine").exists()
