"""Building from the hub by the command line: the reference configs, on stand-ins that a local hub serves."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support import encoder_project
from tests.support.hub_server import HubServer, hub_fixture  # noqa: F401
from tests.support.models import supertonic
from tests.support.project import ROOT, Project

pytestmark = pytest.mark.slow


@pytest.fixture
def served(hub: HubServer, bert_project: Project, tmp_path: Path) -> Project:
    """The small encoder, its source a branch of a hub repo."""
    project = bert_project.copy(tmp_path / "project")
    encoder_project.write_model(tmp_path / "bert")
    hub.add("our/bert", tmp_path / "bert")
    project.edit("configs/bert.yaml", "{path: ../models/bert}", "{hub: our/bert, revision: main}")
    project.environ |= hub.environ(tmp_path / "home")
    return project


def test_a_branch_is_pinned_once_and_never_followed(hub: HubServer, served: Project, tmp_path: Path) -> None:
    repo = hub.add("our/bert", tmp_path / "bert")
    commit = repo.branches["main"]
    first = served.doit("build")
    assert f"'main' is pinned to commit {commit} in configs/pins.yaml" in first.text
    assert f"our/bert@main: {commit}" in (served.root / "configs/pins.yaml").read_text()
    manifest = json.loads((served.root / "artifacts/bert/sm8650/manifest.json").read_text())
    assert manifest["source"]["hub"] == "our/bert"
    assert manifest["source"]["revision"] == commit

    (tmp_path / "bert" / "onnx" / "model.onnx").write_bytes(b"something else")
    repo.commit(tmp_path / "bert")
    asked = len(hub.requests)
    assert not served.doit("build").built
    assert len(hub.requests) == asked, "a build with nothing to do asks nobody"


def test_from_the_hub_and_from_a_folder_is_the_same_work(served: Project, bert_built: Project) -> None:
    run = served.doit("build")
    assert set(run.stages()) <= {"fetch"}
    assert set(served.artifacts()) == set(bert_built.artifacts())


def test_a_build_without_network_works_from_the_cache(served: Project, tmp_path: Path) -> None:
    served.store = tmp_path / "store"
    served.doit("fetch:bert")
    shutil.rmtree(served.root / ".build")
    shutil.rmtree(served.store)
    assert "fetch:bert" in served.doit("fetch:bert", HF_HUB_OFFLINE="1", HF_ENDPOINT="http://127.0.0.1:9").built


def test_what_the_hub_refuses_is_said_with_the_documented_status(served: Project) -> None:
    served.edit("configs/bert.yaml", "revision: main", f"revision: {'0' * 40}")
    run = served.doit("build", check=False)
    assert run.status == 11
    assert f"our/bert has no revision '{'0' * 40}'" in run.text
    served.edit("configs/bert.yaml", "hub: our/bert", "hub: our/bret")
    run = served.doit("build", check=False)
    assert run.status == 11
    assert "our/bret" in run.text
    assert "Traceback" not in run.text


def test_supertonic_is_built_from_its_committed_config(hub: HubServer, tmp_path: Path, store: Path) -> None:
    supertonic.write(tmp_path / "supertonic")
    hub.add("onnx-community/Supertonic-TTS-2-ONNX", tmp_path / "supertonic")
    project = Project.create(tmp_path / "project", store)
    shutil.copy(ROOT / "configs" / "supertonic-tts-2.yaml", project.root / "configs")
    for code in ("supertonic.py", "audio.py"):
        shutil.copy(ROOT / "calibration" / code, project.root / "calibration")
    shutil.copytree(ROOT / "calibration" / "supertonic", project.root / "calibration" / "supertonic")
    project.environ |= hub.environ(tmp_path / "home")
    project.doit("build:supertonic-tts-2", "targets=sm8650")
    manifest = json.loads((project.root / "artifacts/supertonic-tts-2/sm8650/manifest.json").read_text("utf-8"))
    built = {
        name: [bucket["axes"] for bucket in component["buckets"]] for name, component in manifest["components"].items()
    }
    assert built == {
        "text_encoder": [{"text_length": 64}, {"text_length": 128}],
        "latent_denoiser": [{"text_length": at, "latent_length": at} for at in (64, 128)],
        "voice_decoder": [{"latent_length": 64}, {"latent_length": 128}],
    }
    assert {
        bucket["partitions"] for component in manifest["components"].values() for bucket in component["buckets"]
    } == {1}


def test_buckets_that_are_equal_for_a_component_are_built_once(hub: HubServer, tmp_path: Path, store: Path) -> None:
    supertonic.write(tmp_path / "supertonic")
    hub.add("onnx-community/Supertonic-TTS-2-ONNX", tmp_path / "supertonic")
    project = Project.create(tmp_path / "project", store)
    shutil.copy(ROOT / "configs" / "supertonic-tts-2.yaml", project.root / "configs")
    project.edit(
        "configs/supertonic-tts-2.yaml",
        "{text_length: 128, latent_length: 128}",
        "{text_length: 64, latent_length: 96}",
    )
    project.environ |= hub.environ(tmp_path / "home")
    project.store = tmp_path / "another store"
    run = project.doit("shape:supertonic-tts-2/*")
    assert len([step for step in run.built if step.startswith("shape:supertonic-tts-2/text_encoder")]) == 1
    assert len([step for step in run.restored if step.startswith("shape:supertonic-tts-2/text_encoder")]) == 1
    assert len([step for step in run.built if step.startswith("shape:supertonic-tts-2/latent_denoiser")]) == 2
