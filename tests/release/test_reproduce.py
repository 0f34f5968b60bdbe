"""A release is built again from its index, elsewhere; what differs is named with the step at which it began."""

from __future__ import annotations

import copy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.release.reproduce import compare
from tests.support import tiny_project
from tests.support.project import Project
from tests.support.tiny_models import sample
from tests.support.uv_command import find_uv

RELEASED = "artifacts/releases/tiny-1.0.qnn.zip"


def index(**changed: Any) -> dict[str, Any]:
    steps = ("fetch:m", "ingest:m/c", "samples:m/all", "calibrate:m/c", "emulate:m/c/8/sm8650")
    found: dict[str, Any] = {
        "files": {
            "contexts/a.bin": {"sha256": "aa" * 32, "bytes": 1},
            "sbom.cdx.json": {"sha256": "bb" * 32, "bytes": 2},
        },
        "tools": {"onnx": "1.19.0", "tokenizers": "0.22.1"},
        "keys": {step: f"key of {step}" for step in steps},
        "outputs": {step: f"output of {step}" for step in steps},
    }
    for name, value in changed.items():
        found[name] = {**found[name], **value}
    return found


def test_equal_files_match_whatever_the_emulator_had_time_for() -> None:
    now = index(outputs={"emulate:m/c/8/sm8650": "of more samples"})
    verdict = compare(index(), now)
    assert [*verdict.lines()] == ["MATCH contexts/a.bin", "MATCH sbom.cdx.json"]
    assert not verdict.different


def test_the_first_step_in_the_order_of_a_build_is_named_with_the_package_that_it_computes_with() -> None:
    now = index(
        files={"contexts/a.bin": {"sha256": "cc" * 32, "bytes": 1}},
        tools={"tokenizers": "0.21.0"},
        keys={"samples:m/all": "other", "calibrate:m/c": "other"},
        outputs={"samples:m/all": "other", "calibrate:m/c": "other"},
    )
    assert [*compare(index(), now).lines()] == [
        "MATCH sbom.cdx.json",
        "DIFF  contexts/a.bin: sha256 cccccccccccccccc, was aaaaaaaaaaaaaaaa",
        "the first step whose output differs is samples:m/all: tokenizers 0.21.0 here, 0.22.1 then",
        "other packages than then: tokenizers 0.21.0, was 0.22.1",
    ]


def test_a_step_that_does_not_make_the_same_of_the_same_is_told_from_one_that_was_given_something_else() -> None:
    files = {"contexts/a.bin": {"sha256": "cc" * 32, "bytes": 1}}
    assert compare(index(), index(files=files, outputs={"calibrate:m/c": "other"})).first.endswith(
        "calibrate:m/c: its key is equal, so it does not make the same of the same"
    )
    changed = index(files=files, keys={"calibrate:m/c": "other"}, outputs={"calibrate:m/c": "other"})
    assert "calibrate:m/c: its code, its settings or the files it reads" in compare(index(), changed).first


def test_equal_outputs_of_other_packages_are_told() -> None:
    now = index(
        files={"sbom.cdx.json": {"sha256": "cc" * 32, "bytes": 2}}, tools={"onnx": "2"}, keys={"ingest:m/c": "x"}
    )
    assert compare(index(), now).first == (
        "the first step that was told otherwise, with an equal output is ingest:m/c: onnx 2 here, 1.19.0 then"
    )


def test_files_that_one_side_lacks_differ() -> None:
    now = copy.deepcopy(index())
    now["files"]["contexts/b.bin"] = now["files"].pop("contexts/a.bin")
    assert compare(index(), now).different == {"contexts/a.bin": "not made", "contexts/b.bin": "not in the release"}


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> Project:
    root = tmp_path_factory.mktemp("here")
    project = tiny_project.create(root / "project", root / "store", buckets=[8], targets=["sm8650"])
    config = project.root / tiny_project.CONFIG
    config.write_text(config.read_text("utf-8") + 'release: {version: "1.0"}\n', "utf-8")
    project.doit("package:tiny")
    return project


@pytest.fixture
def elsewhere(packaged: Project, tmp_path: Path) -> Project:
    """Another checkout: no config, no store, nothing built."""
    root = tmp_path / "elsewhere"
    shutil.copytree(packaged.root, root, ignore=shutil.ignore_patterns(".build", "artifacts", "configs"))
    (root / "configs").mkdir()
    return Project(root, tmp_path / "store")


@pytest.mark.slow
def test_a_release_is_reproduced_in_another_checkout(packaged: Project, elsewhere: Project) -> None:
    run = elsewhere.doit("reproduce", str(packaged.root / RELEASED))
    assert "MATCH contexts/sm8650/net_8_ctx_qnn.bin" in run.text
    assert "MATCH tiny 1.0: all" in run.text
    assert "DIFF" not in run.text
    assert not [*(elsewhere.root / ".build" / "reproduce").iterdir()]


@pytest.mark.slow
def test_another_calibration_is_a_diff_at_the_step_that_reads_it(
    packaged: Project, elsewhere: Project, tmp_path: Path
) -> None:
    np.save(elsewhere.root / "calibration" / "calibration" / "0.npy", sample(3, 99))
    with zipfile.ZipFile(packaged.root / RELEASED) as archive:
        archive.extract("release.json", tmp_path)
    run = elsewhere.doit("reproduce", str(tmp_path / "release.json"), check=False)
    assert run.status == 16
    assert "DIFF  contexts/sm8650/net_8_ctx_qnn.bin" in run.text
    assert "the first step whose output differs is samples:tiny/calibration" in run.text
    assert (elsewhere.root / ".build" / "reproduce" / "tiny-1.0" / "artifacts" / "tiny").is_dir()


@pytest.mark.slow
def test_another_version_of_a_package_is_a_diff_that_names_it(
    packaged: Project, elsewhere: Project, tmp_path: Path
) -> None:
    uv = find_uv()
    assert uv, "uv is what CI installs with"
    install = [
        uv,
        "pip",
        "install",
        "--quiet",
        "--python",
        sys.executable,
        "--no-deps",
        "--target",
        str(tmp_path / "other"),
    ]
    subprocess.run([*install, "tokenizers==0.21.4"], check=True)
    run = elsewhere.doit("reproduce", str(packaged.root / RELEASED), check=False, PYTHONPATH=str(tmp_path / "other"))
    assert run.status == 16
    assert "DIFF  sbom.cdx.json" in run.text
    assert "is samples:tiny/calibration: tokenizers 0.21.4 here" in run.text


@pytest.mark.slow
def test_one_release_at_a_time(elsewhere: Project) -> None:
    assert elsewhere.doit("reproduce", check=False).status == 10
    run = elsewhere.doit("reproduce", "no-such.qnn.zip", check=False)
    assert (run.status, "there is no archive no-such.qnn.zip" in run.text) == (10, True)
