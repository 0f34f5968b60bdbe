"""A model in which nothing changed is not looked at step by step; whatever changed is noticed as ever."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline import command_line
from pipeline.config import project_file
from pipeline.plan.workspace import Workspace
from pipeline.report.unchanged import Unchanged, may_skip
from tests.support import tiny_project
from tests.support.project import Project

NAME = tiny_project.NAME


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project that was built, and found to be done."""
    root = tmp_path_factory.mktemp("unchanged") / "project"
    made = tiny_project.create(root, root / ".build" / "store", buckets=(8,), targets=("sm8650",))
    made.edit("pipeline/command_line.py", "from __future__", "# a copy\nfrom __future__")
    made.doit("build")
    return made


def known(project: Project) -> bool:
    """Whether the next build need not look at the steps."""
    workspace = Workspace.at(project.root, {"PIPELINE_STORE": str(project.store)})
    workspace = workspace.configured(project_file.load(project.root / "configs"), {})
    unchanged = Unchanged(project.root, project.root / "pipeline")
    return [*unchanged.accounts([NAME], workspace)] == [NAME]


def settle(project: Project) -> None:
    """Build until there is nothing to do, which the next build need not look at."""
    deadline = time.monotonic() + 60
    while not known(project):
        assert time.monotonic() < deadline
        project.doit("build")


def first(project: Project, pattern: str) -> Path:
    return next(path for path in sorted(project.root.glob(pattern)) if path.is_file())


def payload(project: Project) -> Path:
    """A payload of the context that is in artifacts/."""
    manifest = json.loads(first(project, ".build/steps/context/tiny/**/*.json").read_bytes())
    digest = str(next(iter(manifest["files"].values()))["sha256"])
    return project.store / "objects" / digest[:2] / digest


def rot(path: Path) -> None:
    """Flip a byte, and leave size and time as they were."""
    status = path.stat()
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def lose_keys(project: Project) -> None:
    for path in (project.store / "manifests").rglob("*.json"):
        path.unlink()


def touch(path: Path) -> None:
    path.write_bytes(path.read_bytes())


CHANGES: dict[str, Callable[[Project], object]] = {
    "config": lambda project: project.edit(tiny_project.CONFIG, "targets:", "# a comment\ntargets:"),
    "settings": lambda project: project.write("configs/project.yaml", "compare: {}\n"),
    "code": lambda project: touch(first(project, "pipeline/plan/planner.py")),
    "source": lambda project: touch(first(project, "model/model.onnx")),
    "external data": lambda project: touch(first(project, "model/*.bin")),
    "sample": lambda project: touch(first(project, "calibration/calibration/*.npy")),
    "another sample": lambda project: (project.root / "calibration/held_out/9.npy").write_bytes(
        first(project, "calibration/held_out/*.npy").read_bytes()
    ),
    "step": lambda project: rot(first(project, ".build/steps/verify/tiny/**/*.json")),
    "lost step": lambda project: first(project, ".build/steps/verify/tiny/**/*.json").unlink(),
    "lost keys": lose_keys,
    "payload": lambda project: payload(project).write_bytes(b"not what it was"),
    "lost payload": lambda project: payload(project).unlink(),
    "artifact": lambda project: rot(first(project, "artifacts/tiny/sm8650/*.bin")),
    "artifact's manifest": lambda project: rot(first(project, "artifacts/tiny/sm8650/manifest.json")),
    "lost artifact": lambda project: first(project, "artifacts/tiny/sm8650/*.onnx").unlink(),
    "lost report": lambda project: first(project, "artifacts/tiny/report.html").unlink(),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", CHANGES)
def test_what_changed_is_looked_at_and_mended(project: Project, what: str) -> None:
    settle(project)
    before = project.artifacts()
    if what in ("payload",):
        payload(project).chmod(0o644)
    CHANGES[what](project)
    assert not known(project)
    project.doit("build")
    assert (project.root / "artifacts/tiny/report.html").is_file()
    if what != "another sample":
        assert project.artifacts() == before


@pytest.mark.slow
def test_nothing_is_looked_at_where_nothing_changed_and_all_is_told_as_before(project: Project) -> None:
    settle(project)
    (project.root / ".build/unchanged/tiny.json").unlink()
    looked = project.doit("build").text
    at_all = json.loads((project.root / ".build/run.json").read_bytes())
    assert known(project)
    spared = project.doit("build").text
    spared_at_all = json.loads((project.root / ".build/run.json").read_bytes())
    assert spared == looked
    assert "steps are current" in spared
    timed = ("started", "seconds")
    assert {name: each for name, each in spared_at_all.items() if name not in timed} == {
        name: each for name, each in at_all.items() if name not in timed
    }


@pytest.mark.slow
def test_what_a_build_tells_each_time_is_told_each_time(project: Project) -> None:
    settle(project)
    stranger = project.write("artifacts/tiny/sm8650/note.txt", "mine")
    for _ in range(3):
        assert "left alone: artifacts/tiny/sm8650/note.txt" in project.doit("build").text
    stranger.unlink()


@pytest.mark.slow
def test_outputs_stay_in_use(project: Project) -> None:
    settle(project)
    old = time.time() - 3 * 86400
    manifests = [*(project.store / "manifests").rglob("*.json")]
    for path in manifests:
        os.utime(path, (old, old))
    project.doit("build")
    key = json.loads(first(project, ".build/steps/context/tiny/**/*.json").read_bytes())["key"]
    assert (project.store / "manifests" / key[:2] / f"{key}.json").stat().st_mtime > old + 86400


@pytest.mark.parametrize(
    ("line", "skips"),
    [
        ("", True), ("build", True), ("build:tiny", True), ("-n 4 build", True), ("-n8 -c build", True),
        ("models=tiny build", True), ("-a build", False), ("targets=sm8650 build", False), ("list", False),
        ("context:tiny/*", False), ("build package", False), ("build:*", False), ("clean build", False),
        ("-s build:tiny", False), ("--dry-run build", False),
    ],
)  # fmt: skip
def test_only_builds_of_whole_models_skip(line: str, skips: bool) -> None:
    parsed = command_line.parse(line.split())
    assert may_skip(parsed, parsed.variables) == skips
