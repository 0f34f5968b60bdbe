"""Samples from a repository of data, by the real client against the local hub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from pipeline.errors import SourceError
from pipeline.inputs.hub import data as hub_data
from tests.support.hub_server import HubServer, hub_fixture  # noqa: F401
from tests.support.project import Project
from tests.support.tiny_project import CONFIG, NAME

FILES: Mapping[str, bytes] = {
    "README.md": b"# Sentences",
    "text/lines.txt": b"one two\nthree four five\nsix\nseven eight\n" * 8,
    "sounds/b.wav": b"b",
    "sounds/a.wav": b"a",
    "sounds/dog/c.wav": b"c",
    "sounds/notes.txt": b"notes",
    "tables/train.parquet": b"PAR1",
}


@pytest.fixture
def commit(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in hub.environ(tmp_path / "home").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", hub.url, raising=False)
    return hub.add("datasets/our/data", FILES).branches["main"]


def listed(commit: str, path: str, *suffixes: str, most: int | None = None) -> list[str]:
    return hub_data.data_files("datasets/our/data", commit, path, suffixes, most)


def test_of_a_folder_the_first_files_of_a_kind_are_wanted(commit: str) -> None:
    assert listed(commit, "text/lines.txt") == ["text/lines.txt"]
    assert listed(commit, "sounds", ".wav") == ["sounds/a.wav", "sounds/b.wav", "sounds/dog/c.wav"]
    assert listed(commit, "sounds", ".wav", most=2) == ["sounds/a.wav", "sounds/b.wav"]


def test_what_is_not_there_is_said_with_what_is(commit: str) -> None:
    with pytest.raises(SourceError, match="has no file or folder sound; did you mean 'sounds'") as caught:
        listed(commit, "sound", ".wav")
    assert "README.md" in caught.value.why
    with pytest.raises(SourceError, match="tables of datasets/our/data has no file that could be a sample") as caught:
        listed(commit, "tables", ".wav")
    assert "parquet" in caught.value.remedy


def test_a_folder_beyond_bounds_is_refused(commit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_data, "MAX_FETCHED", 2)
    with pytest.raises(SourceError, match="sounds of datasets/our/data has 4 files"):
        listed(commit, "sounds")


@pytest.mark.slow
def test_samples_of_the_hub_are_pinned_fetched_and_read(hub: HubServer, tiny_built: Project, tmp_path: Path) -> None:
    project = tiny_built.copy(tmp_path / "project", tmp_path / "store")
    folder = project.root / "calibration/calibration"
    repo = hub.add("datasets/our/data", {f"arrays/{path.name}": path.read_bytes() for path in folder.iterdir()})
    project.edit(CONFIG, "folder: calibration/calibration", "folder: {hub: our/data, revision: main, path: arrays}")
    project.environ |= hub.environ(tmp_path / "home")
    run = project.doit(f"calibrate:{NAME}/net")
    assert f"datasets/our/data: 'main' is pinned to commit {repo.branches['main']}" in run.text
    assert f"fetch:{NAME}/calibration" in run.built
    assert f"calibrate:{NAME}/net" not in run.built, "samples of equal content rebuild nothing"
    assert not project.doit(f"calibrate:{NAME}/net").built
