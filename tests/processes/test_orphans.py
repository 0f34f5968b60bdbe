"""Whoever is killed, nothing that a build has started is left running."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support import guests
from tests.support.build_processes import Build, kill, until
from tests.support.project import Project

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there are process groups and lifelines on Linux alone")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with a step that waits for a child that hangs; what it needs is built."""
    root = tmp_path_factory.mktemp("orphans")
    project = guests.create(root / "project", root / "store", guests.NESTED)
    project.doit("ingest:*")
    return project


class Hanging:
    """A build that hangs in a child of its step."""

    def __init__(self, project: Project, build: Build) -> None:
        self.build = build
        assert until(lambda: [*project.store.glob("tmp/*/hangs")] != [], build, 60), build.text()
        (worker,), (child,) = build.workers(), build.grandchildren()
        self.processes = {"doit": build.doit, "worker": worker, "child": child}
        for template in build.template():
            self.processes["template"] = template
        assert "pipeline.qnn.child" in " ".join(child.cmdline())

    def named(self, *names: str) -> list[psutil.Process]:
        """Those of its processes that there are."""
        return [self.processes[name] for name in names if name in self.processes]


@pytest.fixture(params=["warm", "fresh"])
def hanging(request: pytest.FixtureRequest, source: Project, tmp_path: Path) -> Iterator[Hanging]:
    build = Build(source, "shape:*", log=tmp_path / "log", PIPELINE_WORKERS=request.param)
    try:
        yield Hanging(source, build)
    finally:
        build.destroy()
        for folder in source.store.glob("tmp/*"):  # of a build that was killed
            shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize(
    "killed",
    [
        ("template", "worker", "doit"),
        pytest.param(("doit",), marks=pytest.mark.slow),
        pytest.param(("doit", "template"), marks=pytest.mark.slow),
        pytest.param(("worker", "doit"), marks=pytest.mark.slow),
        pytest.param(("doit", "child"), marks=pytest.mark.slow),
    ],
    ids="-".join,
)
def test_all_end_with_doit(hanging: Hanging, killed: tuple[str, ...]) -> None:
    hanging.build.doit.suspend()  # so that it can't tidy up after those who die before it
    for process in hanging.named(*killed):
        kill(process)
    assert hanging.build.orphans(within_s=10) == []


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["template", "worker"])
def test_what_a_killed_process_started_ends_while_the_build_goes_on(hanging: Hanging, killed: str) -> None:
    ended = hanging.named(killed)
    if not ended:
        pytest.skip("there is no template")
    for process in ended:
        kill(process)
    below = hanging.named("worker", "child")
    assert psutil.wait_procs(below, timeout=10)[1] == []
