"""A build with nothing to do imports what says so, and no more; where anything is otherwise, it goes the whole way."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.upkeep import nothing_to_do
from tests.support import tiny_project
from tests.support.project import Project

WHOLE_WAY = frozenset(
    {"yaml", "filelock", "pipeline.config.load", "pipeline.plan.planner", "pipeline.build.crew", "pipeline.tasks"}
)
"""Modules of which each build needs some that has to look at steps."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Project:
    root = tmp_path_factory.mktemp("nothing") / "project"
    project = tiny_project.create(root, root / ".build" / "store", buckets=(8,), targets=("sm8650",))
    project.doit("build")
    return project


@pytest.fixture
def project(made: Project) -> Iterator[Project]:
    """The project, with nothing to do; what a test has changed of it is put back."""
    kept = {path: path.read_bytes() for path in (made.root / "configs").iterdir()}
    deadline = time.monotonic() + 60
    while spared(made) is None:
        assert time.monotonic() < deadline
        made.doit("build")
    yield made
    for path in (made.root / "configs").iterdir():
        path.unlink()
    for path, data in kept.items():
        path.write_bytes(data)


def imported(project: Project, *arguments: str) -> tuple[set[str], str]:
    """What a command of doit imports, and what it prints."""
    text = project.doit(*arguments, PYTHONPROFILEIMPORTTIME="1").text
    lines = text.splitlines()
    times = [line for line in lines if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in times}, "\n".join(line for line in lines if line not in times)


def spared(project: Project, *arguments: str) -> str | None:
    """What a build prints if it imports nothing of what those need that look at steps; None if it does."""
    names, text = imported(project, *(arguments or ("build",)))
    assert "doit" in names
    return None if names & WHOLE_WAY else text


@pytest.mark.slow
def test_it_imports_few_modules(project: Project) -> None:
    names, text = imported(project, "build")
    assert "Nothing to do: all" in text
    assert not names & {*WHOLE_WAY, "numpy", "onnx", "onnxruntime"}
    ours = {name for name in names if name.startswith("pipeline")}
    assert len(ours) < 80, sorted(ours)


@pytest.mark.slow
@pytest.mark.parametrize("line", ["", "build", "build:tiny", "-n 2 build", "-n4 build:tiny", "build build:tiny"])
def test_it_prints_and_records_what_the_whole_way_does(project: Project, line: str) -> None:
    said = spared(project, *line.split()) if line else imported(project)[1]
    record = json.loads((project.root / ".build/run.json").read_bytes())
    report = (project.root / ".build/report.md").read_text("utf-8").splitlines()[0]
    whole = project.doit(*line.split(), PIPELINE_SHARED_STORE="")
    recorded = json.loads((project.root / ".build/run.json").read_bytes())
    assert said is not None
    assert said.strip() == whole.text.strip()
    timed = ("started", "seconds")
    assert {name: each for name, each in record.items() if name not in timed} == {
        name: each for name, each in recorded.items() if name not in timed
    }
    assert report == (project.root / ".build/report.md").read_text("utf-8").splitlines()[0]


CHANGES: dict[str, Callable[[Project], object]] = {
    "config": lambda project: project.edit(tiny_project.CONFIG, "targets:", "# a comment\ntargets:"),
    "settings": lambda project: project.write("configs/project.yaml", "compare: {}\n"),
    "rules for hosts": lambda project: project.write("configs/project.yaml", "stages: {fetch: {hosts: [linux]}}\n"),
    "config of another model": lambda project: project.write("configs/other.yaml", "source: {}\n"),
    "config by a wrong name": lambda project: project.write("configs/tiny.yml", "source: {}\n"),
    "lost account": lambda project: (project.root / ".build/unchanged/tiny.json").unlink(),
    "damaged cache": lambda project: (project.root / ".build/memo.json").write_text("{"),
    "lost page": lambda project: (project.root / "artifacts/report.html").unlink(),
    "damaged settings": lambda project: (project.root / ".build/unchanged/.configs.json").write_text("{}"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", CHANGES)
def test_what_is_otherwise_takes_the_whole_way(project: Project, what: str) -> None:
    CHANGES[what](project)
    names, _ = imported_whatever_comes(project, "build")
    assert "pipeline.tasks" in names


def imported_whatever_comes(project: Project, *arguments: str) -> tuple[set[str], str]:
    text = project.doit(*arguments, check=False, PYTHONPROFILEIMPORTTIME="1").text
    return {line.rpartition("|")[2].strip() for line in text.splitlines()}, text


@pytest.mark.slow
def test_artifacts_of_no_config_are_told_each_time(project: Project) -> None:
    folder = project.root / "artifacts"
    shutil.copytree(folder / "tiny", folder / "gone")
    for path in folder.glob("gone/*/manifest.json"):
        path.write_text(path.read_text("utf-8").replace('"tiny"', '"gone"'), "utf-8")
    for _ in range(2):
        assert "of no config any more" in project.doit("build").text
    shutil.rmtree(folder / "gone")


@pytest.mark.slow
def test_a_model_on_request_that_was_never_built_is_named_and_not_looked_at(project: Project) -> None:
    text = (project.root / tiny_project.CONFIG).read_text("utf-8")
    project.write("configs/asked.yaml", f"on_request: true\n{text}")
    assert "doit build:asked" in project.doit("build").text
    time.sleep(0.2)
    project.doit("build")
    said = spared(project)
    assert said is not None
    assert "Not built, as only on request: doit build:asked" in said


@pytest.mark.slow
@pytest.mark.parametrize("line", ["-n 0 build", "-a build", "-v 0 build", "list", "models=tiny build", "--help"])
def test_other_commands_and_options_are_for_doit(project: Project, line: str) -> None:
    names, _ = imported_whatever_comes(project, *line.split())
    assert "pipeline.tasks" in names or line == "--help"


@pytest.mark.parametrize(
    ("program", "asked"),
    [
        ("/usr/bin/doit", True), ("doit.exe", True), ("/lib/doit/__main__.py", True),
        ("-c", False), ("/usr/bin/pytest", False), ("/lib/pytest/__main__.py", False), ("", False),
    ],
)  # fmt: skip
def test_who_only_imports_dodo_is_no_build(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, asked: bool
) -> None:
    looked: list[list[str]] = []
    monkeypatch.setattr(nothing_to_do, "_done", lambda given, _: looked.append(given))
    monkeypatch.delenv("PIPELINE_SHARED_STORE", raising=False)
    nothing_to_do.leave_if_done(tmp_path, [program, "build"])
    assert looked == ([["build"]] if asked else [])
