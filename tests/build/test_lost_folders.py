"""Folders that go away, before a build or under it: what is lost is made again, and is what it was."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.build_processes import Build, leftovers, tree, until
from tests.support.project import Project

pytestmark = pytest.mark.slow

_LONG_S = 120


@pytest.fixture
def project(tiny_built: Project, tmp_path: Path) -> Project:
    return tiny_built.copy(tmp_path / "project", tmp_path / "store")


def built(project: Project) -> Mapping[str, bytes]:
    """The artifacts after a build that must succeed, and after which there is nothing left to do."""
    project.doit("build")
    again = project.doit("build")
    assert "Nothing to do" in again.text
    assert leftovers(project.store, project.root) == []
    return tree(project.root / "artifacts")


def test_clean_of_everything_and_a_build(project: Project) -> None:
    before = built(project)
    project.doit("clean", "--clean-all")
    assert tree(project.root / "artifacts") == {}
    assert built(project) == before
    project.doit("clean", "build:tiny")
    assert tree(project.root / "artifacts") == {}
    assert built(project) == before


@pytest.mark.parametrize("lost", [["store"], [".build"], ["store", ".build", "artifacts"]], ids="+".join)
def test_folders_that_are_deleted_between_builds(lost: list[str], project: Project) -> None:
    before = built(project)
    for name in lost:
        shutil.rmtree(project.store if name == "store" else project.root / name)
    run = project.doit("build")
    assert bool(run.built) == ("store" in lost)  # what is known of a step without files is not lost with the store
    assert built(project) == before
    assert "WRONG" not in project.doit("fsck").text


@pytest.mark.parametrize("parts", [["objects"], ["manifests"], ["locks", "tmp", "roots", "costs.json"]], ids="+".join)
def test_parts_of_the_store_that_are_deleted(parts: list[str], project: Project) -> None:
    before = built(project)
    for path in (project.store / part for part in parts):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    assert built(project) == before
    assert "WRONG" not in project.doit("fsck").text


@pytest.mark.parametrize("lost", ["store", ".build", "artifacts"])
def test_a_folder_that_is_deleted_under_a_build(lost: str, project: Project, tmp_path: Path) -> None:
    """That build may fail, with an error of ours; the next is what it always is."""
    before = built(project)
    shutil.rmtree(project.store)
    with Build(project, "-n", "2", "build", log=tmp_path / "log") as build:
        assert until(lambda: "quantize:tiny/net" in build.text(), build, _LONG_S), build.text()
        _remove(project.store if lost == "store" else project.root / lost)
        ended = build.end(_LONG_S)
        assert build.orphans(within_s=20) == []
    assert ended.status in (0, 17, 18), ended.text
    assert "Traceback" not in ended.text
    assert built(project) == before
    assert "WRONG" not in project.doit("fsck").text


def _remove(folder: Path) -> None:
    """Remove a folder into which somebody writes."""
    aside = folder.with_name(f"{folder.name} aside")
    folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)
