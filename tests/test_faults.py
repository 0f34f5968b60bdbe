"""A short run of :mod:`tests.faults`, and what the harness itself sees."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from tests import faults
from tests.support import tiny_project
from tests.support.build_processes import Build, leftovers, until
from tests.support.strikes import STRIKES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="strikes are signals"),
]
PATIENCE_S = 20.0
"""For a machine that is busy with other things; the long run by command is strict."""


def test_a_build_that_is_killed_again_and_again_ends_as_one_that_was_not(tmp_path: Path) -> None:
    told: list[str] = []
    report = faults.Range(tmp_path, seed=5, patience_s=PATIENCE_S, buckets=[8]).run(len(STRIKES), told.append)
    assert report.complaints == [], report.text()
    assert {kill.strike for kill in report.kills} == {*STRIKES}, report.text()


def test_the_harness_sees_processes_of_every_kind_and_what_is_left_of_them(tmp_path: Path) -> None:
    project = tiny_project.create(tmp_path / "project", tmp_path / "store", buckets=[8], targets=["sm8650"])
    with Build(project, "build", log=tmp_path / "log") as build:
        assert until(lambda: bool(build.grandchildren()), build, 60), build.text()
        kinds = [build.doit, *build.template(), *build.workers(), *build.grandchildren()]
        assert len({process.pid for process in kinds}) >= 4
        assert {process.pid for process in kinds} <= {process.pid for process in build.alive()}
        assert build.orphans(within_s=0) != []
    assert build.orphans(within_s=PATIENCE_S) == []


def test_the_harness_sees_what_is_left_of_files(tmp_path: Path) -> None:
    for name in ("tmp/a/out/x", "locks/key", "objects/ab/.ab.1.tmp", "costs.lock", "objects/ab/abc", "memo.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [Path(path).relative_to(tmp_path).as_posix() for path in leftovers(tmp_path)]
    assert found == ["costs.lock", "locks/key", "objects/ab/.ab.1.tmp", "tmp/a"]


def test_the_harness_sees_an_artifact_that_is_not_the_undisturbed_one(tmp_path: Path) -> None:
    shot = faults.Range(tmp_path, seed=1, patience_s=PATIENCE_S, buckets=[8])
    shot.expected = {**shot.expected, "tiny/sm8650/manifest.json": b"other", "tiny/sm8650/more": b""}
    strike, _ = STRIKES["SIGKILL of doit"]
    with Build(shot.project, "build", log=tmp_path / "log") as build:
        assert strike(build, random.Random(0))
        assert build.end(PATIENCE_S).status == -9
    report = shot.run(1, lambda _: None)
    assert any("tiny/sm8650/more" in complaint for complaint in report.complaints)
    assert any("manifest.json" in complaint for complaint in report.complaints)
