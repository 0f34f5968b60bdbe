"""`doit fsck` by the real command line, on a real build."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.model import FileEntry
from pipeline.store import sealed_json
from pipeline.store.manifests import read_manifest, write_manifest
from tests.support import tiny_project
from tests.support.project import Project
from tests.support.rot import rot

pytestmark = pytest.mark.slow


@pytest.fixture
def project(built: Project, tmp_path: Path) -> Project:
    """A copy that a test may damage."""
    copy = built.copy(tmp_path / "project", tmp_path / "store")
    copy.doit("build")  # in a new place each file is read once
    return copy


def payload_of(project: Project, stage: str) -> Path:
    """A payload that a step of the stage made."""
    path = next((project.root / ".build" / "steps" / stage).rglob("*.json"))
    sha256: str = max(json.loads(path.read_bytes())["files"].values(), key=lambda entry: entry["bytes"])["sha256"]
    return project.store / "objects" / sha256[:2] / sha256


def findings(project: Project, status: int, *options: str) -> dict[str, Any]:
    run = project.doit("fsck", "--json", *options, check=False)
    assert run.status == status, run.text
    found = json.loads(run.text)
    assert found["wrong"] == sum(row["wrong"] for row in found["findings"])
    return {row["path"]: row for row in found["findings"]}


def test_a_healthy_store_is_said_to_be(project: Project) -> None:
    run = project.doit("fsck")
    assert "files of the store" in run.text
    assert ", 0 artifact files" not in run.text
    assert run.text.rstrip().endswith("healthy")
    assert findings(project, 0) == {}


def test_rotten_payloads_are_found_dropped_and_made_again(project: Project) -> None:
    before = project.artifacts()
    payload = payload_of(project, "quantize")
    rot(payload)
    assert not project.doit("build").built, "no stat shows it"
    found = findings(project, 17)
    assert found[str(payload)]["problem"] == "its SHA-256 is not the one that it was stored under"
    assert found[str(payload)]["done"] == "dropped: made again when it is needed"
    assert any("lacks" in row["problem"] for row in found.values()), "outputs that have it are named"
    assert "quantize" in project.doit("build").stages()
    assert findings(project, 0) == {}
    assert project.artifacts() == before


def test_a_rotten_payload_is_not_shipped_and_the_same_build_heals(project: Project) -> None:
    before = project.artifacts()
    payload = payload_of(project, "context")
    rot(payload)
    shutil.rmtree(project.root / "artifacts")
    run = project.doit("build")
    assert str(payload) in run.text
    assert "its SHA-256 is not the one that it was stored under; it is made again" in run.text
    assert "made again: context:tiny/net/" in run.text
    assert project.artifacts() == before


def test_a_step_does_not_run_on_a_rotten_payload_and_the_same_build_heals(project: Project) -> None:
    before = project.artifacts()
    payload = payload_of(project, "quantize")
    rot(payload)
    payload_of(project, "context").unlink()
    run = project.doit("build")
    assert str(payload) in run.text
    assert "made again: quantize:tiny/net\n" in run.text
    assert "context" in run.stages()
    assert project.artifacts() == before


def test_a_step_that_comes_out_otherwise_than_before_says_so(project: Project) -> None:
    path = project.root / ".build" / "steps" / "samples" / "tiny" / "calibration.json"
    known = read_manifest(path)
    assert known is not None
    name, entry = next(iter(known.files.items()))
    other = replace(known, files={**known.files, name: FileEntry("ab" * 32, entry.bytes)})
    for place in (path, project.store / "manifests" / known.key[:2] / f"{known.key}.json"):
        write_manifest(place, other)
    run = project.doit("build")
    said = f"samples:tiny/calibration was made again and came out otherwise: {name} is {entry.sha256}, was {'ab' * 32}"
    assert said in run.text
    assert run.built == {"samples:tiny/calibration"}


HARMS: dict[str, Callable[[Project], Path]] = {
    "manifest of the store": lambda project: next((project.store / "manifests").glob("*/*.json")),
    "manifest of a step": lambda project: next((project.root / ".build" / "steps").rglob("*.json")),
    "memo": lambda project: project.root / ".build" / "memo.json",
    "database": lambda project: project.root / ".build" / "doit.json",
    "costs": lambda project: project.store / "costs.json",
    "root": lambda project: next((project.store / "roots").iterdir()),
}


@pytest.mark.parametrize("what", HARMS)
def test_a_flipped_bit_in_what_is_kept_beside_payloads_is_found_and_dropped(project: Project, what: str) -> None:
    before = project.artifacts()
    path = HARMS[what](project)
    rot(path)
    if what != "database":  # which doit writes anew at the end of every command
        found = findings(project, 17, "--dry-run")
        assert found[str(path)]["done"] == "to be dropped"
    assert str(path) in findings(project, 17)
    assert not project.doit("build").built
    assert project.artifacts() == before
    assert findings(project, 0) == {}


@pytest.mark.parametrize("name", ["memo.json", "doit.json"])
def test_a_build_names_damage_of_what_only_saves_time(project: Project, name: str) -> None:
    path = project.root / ".build" / name
    path.write_bytes(path.read_bytes()[:-30])
    run = project.doit("build")
    assert f"damaged, and not used: {path}" in run.text
    assert not run.built
    sealed_json.load(path.read_bytes())


def test_a_damaged_file_that_nothing_writes_anew_is_told_of_once(project: Project) -> None:
    path = project.store / "costs.json"
    path.write_bytes(b"[1, 2]")
    assert f"damaged, and not used: {path}" in project.doit("build").text
    assert "damaged" not in project.doit("build").text


def test_rotten_artifacts_are_found_and_the_next_build_puts_them_back(project: Project) -> None:
    before = project.artifacts()
    folder = next(path.parent for path in (project.root / "artifacts").rglob("*_ctx.onnx"))
    harmed = [*folder.iterdir()]
    assert len(harmed) > 2
    for path in harmed:
        rot(path)
    assert {str(path) for path in harmed} <= set(findings(project, 17))
    run = project.doit("build")
    assert not run.built
    assert project.artifacts() == before
    assert findings(project, 0) == {}


def test_what_is_not_ours_is_reported_and_stays(project: Project) -> None:
    store, artifacts = project.store, project.root / "artifacts"
    folder = next(path.parent for path in artifacts.rglob("manifest.json"))
    wrong = [
        store / "objects" / "notes.txt",
        store / "objects" / "ab" / "x",
        store / "notes",
        store / "roots" / "a.json",
    ]
    wrong += [store / "manifests" / "ab" / "notes.json", store / "manifests" / "0.json"]
    mine = folder / "notes.txt"
    for path in (*wrong, mine):
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    found = findings(project, 17)
    assert {path for path, row in found.items() if row["wrong"]} == {str(path) for path in wrong}
    assert not found[str(mine)]["wrong"]
    for _ in range(2):
        run = project.doit("build")
        assert f"not of this build, and left alone: {mine.relative_to(project.root).as_posix()}" in run.text
        assert not run.built
    assert all(path.read_text() == "mine" for path in (*wrong, mine))


def test_a_manifest_that_the_store_lost_is_put_back(project: Project) -> None:
    path = next((project.store / "manifests").glob("*/*.json"))
    data = path.read_bytes()
    for command in ("fsck", "build"):
        path.unlink()
        run = project.doit(command, check=False)
        assert str(path) in run.text
        assert not run.built
        assert path.read_bytes() == data


def test_what_the_dead_left_is_removed_by_a_build_with_nothing_to_do(project: Project) -> None:
    left = [project.store / "tmp" / "a.lock", project.store / "locks" / f"{'0' * 64}.lock"]
    left += [project.root / ".build" / "tmp" / "b.lock", project.store / "tmp" / "c" / "half"]
    target = next(path.parent for path in (project.root / "artifacts").rglob("manifest.json"))
    left.append(target / ".net_ctx.onnx.123-456.tmp")
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
    run = project.doit("build")
    assert not run.built
    assert [path for path in left if path.exists()] == []
    assert list((project.store / "tmp").iterdir()) == []


@pytest.mark.parametrize("first", ["fsck", "gc", "build"])
def test_records_of_steps_that_changed_places_lead_nowhere(project: Project, first: str) -> None:
    before = project.artifacts()
    steps = project.root / ".build" / "steps"
    kinds = ("ingest/tiny/net", "context/tiny/net/8/sm8650", "context/tiny/net/16/sm8650", "quantize/tiny/net")
    places = [steps / f"{name}.json" for name in kinds]
    manifests = [read_manifest(path) for path in places]
    for path, manifest in zip(places, [*manifests[1:], manifests[0]], strict=True):
        assert manifest is not None
        write_manifest(path, manifest)
    run = project.doit(first, check=False)
    assert "Traceback" not in run.text
    assert run.status == (17 if first == "fsck" else 0)
    project.doit("build")
    assert project.artifacts() == before
    assert [read_manifest(path) for path in places] == manifests
    assert findings(project, 0) == {}


def test_a_damaged_database_of_doit_is_no_reason_to_stop(project: Project) -> None:
    path = project.root / ".build" / "doit.json"
    for data in (b"", b"{", b"[]", b'{"a": 1}', os.urandom(100)):
        path.write_bytes(data)
        run = project.doit("build")
        assert not run.built
        assert not run.restored


@pytest.mark.skipif(os.name == "nt", reason="a link that leads to itself needs rights on Windows")
@pytest.mark.parametrize("name", ["objects", "manifests", "roots", "hub", "steps/context", "artifacts"])
def test_a_folder_that_cannot_be_read_is_found_and_nothing_is_dropped_for_it(project: Project, name: str) -> None:
    roots = {"steps/context": project.root / ".build", "artifacts": project.root}
    folder = roots.get(name, project.store) / name
    folder.mkdir(exist_ok=True)
    moved = project.root / "moved"
    folder.rename(moved)
    folder.symlink_to(folder)
    found = findings(project, 17)
    assert not [row for row in found.values() if "dropped" in row["done"]], found
    row = next(row for path, row in found.items() if Path(path) == folder)
    assert row["problem"].startswith("can't be read"), row
    folder.unlink()
    moved.rename(folder)
    assert findings(project, 0) == {}


def test_a_folder_in_the_place_of_a_file_is_moved_out_of_the_way_and_the_build_heals(project: Project) -> None:
    payload, build = payload_of(project, "context"), project.root / ".build"
    for path in (payload, build / "memo.json", build / "doit.json"):
        path.unlink()
        path.mkdir()
        (path / "inside").write_text("somebody's")
    project.doit("build")
    for path in (payload, build / "memo.json", build / "doit.json"):
        assert path.is_file(), path
    payload.unlink()
    (payload / "inside").mkdir(parents=True)
    assert findings(project, 17)[str(payload)]["problem"] == "it is not a file"
    assert not payload.exists()
    project.doit("build")
    assert findings(project, 0) == {}


def test_artifacts_that_are_gone_altogether_are_missed(project: Project) -> None:
    (model,) = (path for path in (project.root / "artifacts").iterdir() if path.is_dir())
    shutil.rmtree(model)
    project.doit("build")
    shutil.rmtree(model)
    for _ in range(2):
        assert {row["problem"] for row in findings(project, 17).values()} == {"it is missing"}
    assert ", 0 artifact files" in project.doit("fsck", check=False).text
    project.doit("build")
    assert findings(project, 0) == {}


def test_one_broken_config_stops_neither_list_nor_fsck_of_the_others(project: Project) -> None:
    project.write("configs/broken.yaml", "source: {paht: x}\n")
    listed = project.doit("list", "--all")
    assert "build:tiny" in listed.text
    assert "configs/broken.yaml" in listed.text
    checked = project.doit("fsck", check=False)
    assert checked.status == 10
    assert "healthy" in checked.text
    assert "configs/broken.yaml" in checked.text
    assert project.doit("build", check=False).status == 10
    # What was made of a model whose config is wrong now is not given up.
    (project.root / "configs" / "broken.yaml").unlink()
    project.write(tiny_project.CONFIG, "source: {paht: x}\n")
    told = project.doit("fsck", check=False).text
    assert "no config" not in told
    assert "healthy" in told


def test_artifacts_of_a_config_that_was_removed_are_named_and_stay(project: Project) -> None:
    config = project.root / tiny_project.CONFIG
    config.rename(config.with_name("other.yaml"))
    before = project.artifacts()
    run = project.doit("build")
    assert run.text.count("of no config any more, and left alone: artifacts/tiny/sm8650") == 1
    assert before.items() <= project.artifacts().items()
    rows = findings(project, 0)
    row = rows[str(project.root / "artifacts" / "tiny" / "sm8650")]
    assert (row["problem"], row["wrong"]) == ("no config builds it any more", False)
