"""Two commands in one project, one of which looks for a precision: the other waits, and neither spoils the other."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pipeline.build import bring
from pipeline.build.bring import ChangedError
from pipeline.config.load import load
from pipeline.plan.planner import plan
from pipeline.plan.resolve import resolve
from pipeline.plan.workspace import Workspace
from pipeline.store import locks
from tests.support import tiny_project
from tests.support.climbing import coarse
from tests.support.project import Run, inherited


def test_another_build_that_replaced_what_a_step_stands_on_is_named(tmp_path: Path) -> None:
    project = tiny_project.create(tmp_path / "project", tmp_path / "store", buckets=(8,), targets=("sm8650",))
    project.doit("quantize:tiny/net")
    workspace = Workspace.at(project.root, {"PIPELINE_STORE": str(project.store)})
    steps = {step.id: step for step in plan(load(project.root / tiny_project.CONFIG))}
    resolved = resolve(steps["blame:tiny/net/8"], workspace)
    assert resolved is not None
    bring._check_unchanged(resolved, workspace)

    config = project.root / tiny_project.CONFIG
    config.write_text(config.read_text("utf-8") + "quantization: {activations: uint8}\n", "utf-8")
    project.doit("quantize:tiny/net")
    with pytest.raises(ChangedError) as caught:
        bring._check_unchanged(resolved, workspace)
    assert caught.value.replaced == "quantize"
    assert "another build in this folder made another output of quantize" in str(caught.value)
    assert "edited" not in str(caught.value)


@pytest.mark.slow
def test_who_comes_beside_a_climb_waits_and_says_for_whom(tmp_path: Path) -> None:
    project = tiny_project.create(tmp_path / "project", tmp_path / "store", buckets=(8,), targets=("sm8650",))
    project.doit("quantize:tiny/net")
    lock = project.root / ".build" / "climbs" / "tiny@net.lock"
    ran: list[Run] = []
    thread = threading.Thread(target=lambda: ran.append(project.doit("blame:tiny/net/8")))
    lock.parent.mkdir(parents=True, exist_ok=True)
    with locks.try_held(lock):
        thread.start()
        time.sleep(12)
        assert not ran, "it went on beside what is tried"
        project.doit("samples:tiny/calibration")  # what stands on no precision waits for nobody
    thread.join()
    (run,) = ran
    assert "waiting for the precision of tiny/net: process " in run.text
    assert run.built == {"blame:tiny/net/8"}


@pytest.mark.slow
def test_blame_beside_a_climb_looks_at_what_it_comes_to(tmp_path: Path) -> None:
    project = coarse(tmp_path)
    environment = inherited() | {"PIPELINE_STORE": str(project.store)}
    build = subprocess.Popen(
        [sys.executable, "-u", "-m", "doit", "build"],
        cwd=project.root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
    )
    assert build.stdout is not None
    said = ""
    while "trying w16a16" not in said:
        line = build.stdout.readline()
        assert line, said
        said += line
    blame = project.doit("blame:net/net/16")
    said += build.communicate()[0]
    assert build.returncode == 0, said
    assert "this keeps to every threshold" in said
    assert "blame:net/net/16" in blame.built | blame.restored
    assert not project.doit("build").built
    again = project.doit("blame:net/net/16")
    assert not again.built | again.restored, "it was about the precision that ships"
