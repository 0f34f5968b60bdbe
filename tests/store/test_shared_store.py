"""Builds that run at once: over one store, in one checkout, and with holders of locks that die or stand still."""

from __future__ import annotations

import re
import sys
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.support import tiny_project
from tests.support.build_processes import Build, leftovers, tree, until
from tests.support.project import Project

pytestmark = pytest.mark.slow

STEPS = 13
_BUILT = re.compile(r"^\[ *\d+/\d+\] built .*?(\w+:\S+)$", re.MULTILINE)
_LONG_S = 300
_SOON_S = 60


def checkouts(folder: Path, count: int) -> list[Project]:
    """Several checkouts of one project over one store."""
    first = tiny_project.create(folder / "0", folder / "store", buckets=[8], targets=["sm8650"])
    return [first, *(first.copy(folder / str(number)) for number in range(1, count))]


def start(projects: Sequence[Project], logs: Path) -> list[Build]:
    logs.mkdir(exist_ok=True)
    return [Build(project, "-n", "1", "build", log=logs / f"{uuid.uuid4().hex}.log") for project in projects]


def finish(builds: Sequence[Build]) -> list[str]:
    """Wait for all; what they printed."""
    try:
        ended = [build.end(_LONG_S) for build in builds]
    finally:
        for build in builds:
            build.destroy()
    assert {each.status for each in ended} == {0}, "\n".join(each.text for each in ended if each.status)
    return [each.text for each in ended]


def ran(texts: Sequence[str]) -> Counter[str]:
    """How often each step ran in a worker, over all builds."""
    return Counter(step for text in texts for step in _BUILT.findall(text))


@contextmanager
def holder(project: Project, logs: Path) -> Iterator[Build]:
    """A build that has come as far as compiling, where it holds the lock of a key."""
    (build,) = start([project], logs)
    with build:
        compiling = (project.root / ".build" / "logs" / "context").rglob
        assert until(lambda: bool([*compiling("*.log")]) and bool(build.workers()), build, _LONG_S), build.text()
        yield build


def test_twenty_builds_over_one_store_do_each_step_once(tmp_path: Path) -> None:
    projects = checkouts(tmp_path, 20)
    texts = finish(start(projects, tmp_path / "logs"))
    counted = ran(texts)
    assert len(counted) == STEPS
    assert {step: count for step, count in counted.items() if count != 1} == {}
    first = tree(projects[0].root / "artifacts")
    assert "tiny/sm8650/net_8_ctx_qnn.bin" in first
    assert [project.root for project in projects if tree(project.root / "artifacts") != first] == []
    assert leftovers(tmp_path / "store", *(project.root for project in projects)) == []


def test_two_builds_in_one_checkout_do_each_step_once(tmp_path: Path) -> None:
    (project,) = checkouts(tmp_path, 1)
    texts = finish(start([project, project], tmp_path / "logs"))
    assert ran(texts) == dict.fromkeys(ran(texts), 1)
    assert len(ran(texts)) == STEPS
    assert not project.doit("build").built
    assert leftovers(tmp_path / "store", project.root) == []


@pytest.mark.skipif(sys.platform == "win32", reason="processes are stopped by signals")
def test_who_waits_for_a_build_that_is_killed_goes_on_with_its_work(tmp_path: Path) -> None:
    projects = checkouts(tmp_path, 3)
    with holder(projects[0], tmp_path / "logs") as first:
        first.doit.suspend()  # so that it gets no further until others wait
        others = start(projects[1:], tmp_path / "logs")
        waiting = [until(partial(_says, other, first), other, _SOON_S) for other in others]
        first.doit.kill()
        texts = finish(others)
    assert waiting == [True, True], texts
    assert "context:tiny/net/8/sm8650" in ran(texts)
    assert set(ran(texts).values()) == {1}
    assert tree(projects[1].root / "artifacts") == tree(projects[2].root / "artifacts")
    projects[0].doit("build")
    assert tree(projects[0].root / "artifacts") == tree(projects[1].root / "artifacts")
    assert leftovers(tmp_path / "store", *(project.root for project in projects)) == []


@pytest.mark.skipif(sys.platform == "win32", reason="processes are stopped by signals")
def test_who_waits_for_a_build_that_stands_still_says_whom_it_waits_for(tmp_path: Path) -> None:
    projects = checkouts(tmp_path, 2)
    with holder(projects[0], tmp_path / "logs") as first:
        first.doit.suspend()
        (second,) = start(projects[1:], tmp_path / "logs")
        told = until(lambda: _says(second, first), second, _SOON_S)
        first.doit.resume()
        texts = finish([first, second])
    assert told, texts[1]
    assert tree(projects[0].root / "artifacts") == tree(projects[1].root / "artifacts")


def _says(waiting: Build, held: Build) -> bool:
    """Whether a build names the other one, and the step that it waits for."""
    text = waiting.text()
    return bool(re.search(rf"\b{held.doit.pid}\b", text)) and "context:tiny/net/8/sm8650" in text
