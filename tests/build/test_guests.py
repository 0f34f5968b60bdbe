"""Native code is a guest: whatever it does to its worker, it costs its step only, and the message says what it was."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

import pytest

from pipeline.build.crew import Crew
from pipeline.build.work import Work
from pipeline.config.file import ModelLimits
from pipeline.errors import WorkerError
from pipeline.model import StageInput, StageRequest
from pipeline.plan.planner import plan
from pipeline.plan.workspace import Workspace
from tests.support import guests
from tests.support.configs import load_all
from tests.support.guests import create
from tests.support.project import Project, Run

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and process groups")

_BUCKETS = (guests.GOOD, *range(guests.SEGFAULT, guests.MEMORY_ERROR + 1))


@pytest.fixture(scope="module", params=["warm", pytest.param("fresh", marks=pytest.mark.slow)])
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, Run]:
    """A build in which every bucket but one goes wrong in a way of its own, told to go on."""
    root = tmp_path_factory.mktemp("guests")
    project = create(root / "project", root / "store", *_BUCKETS)
    return project, project.doit("--continue", "rewrite:*", check=False, PIPELINE_WORKERS=request.param)


def message(run: Run, bucket: int) -> str:
    """What was said of a step when it failed."""
    found = re.search(rf"FAILED +shape:tiny/net/{bucket}\n(error: .*?(?=\n\[|\n\n))", run.text, re.DOTALL)
    assert found, run.text
    return found[1]


@pytest.mark.parametrize(
    ("bucket", "texts"),
    [
        (guests.SEGFAULT, ("killed by signal 11 (SIGSEGV)", "native code crashed", "report it")),
        (guests.ABORT, ("killed by signal 6 (SIGABRT)", "native code gave up")),
        (guests.EXIT_127, ("exit status 127", "not found", "no newer than its driver")),
        (guests.EXIT_0, ("exit status 0", "ended the process as if all was well", "| last words")),
        (guests.EXIT_3, ("exit status 3", "nothing is known")),
        (guests.KILLS_GROUP, ("killed by signal 9 (SIGKILL)", "memory runs out", "doit -n 1")),
        (guests.GARBAGE, ("killed by signal 6 (SIGABRT)", "| the � end")),
        (guests.NO_MEMORY, ("signal 6 (SIGABRT)", "the system gave the process no more memory", "std::bad_alloc")),
        (guests.EATS_MEMORY, ("as it used more than 600 MB", "memory_mb under limits: in configs/tiny.yaml")),
        (guests.MEMORY_ERROR, ("the system gave shape:tiny/net/14 no more memory", "Unable to allocate 99 GiB")),
    ],
)  # fmt: skip
def test_what_a_guest_does_is_told(ran: tuple[Project, Run], bucket: int, texts: tuple[str, ...]) -> None:
    said = message(ran[1], bucket)
    for text in texts:
        assert text in said
    assert "\x1b" not in said
    assert len(said) < 6000, "the end of a log of 100 MB"


def test_other_steps_go_on_and_the_end_lists_what_failed(ran: tuple[Project, Run]) -> None:
    _, run = ran
    assert run.status == WorkerError.exit_code
    assert {"shape:tiny/net/4", "rewrite:tiny/net/4"} <= run.built
    end = run.text[run.text.index("\nFAILED: 10 step(s); 4 built, 0 restored.") :].splitlines()
    failed = [line for line in end if line.startswith("  shape:")]
    assert len(failed) == 10
    assert any("shape:tiny/net/5: the worker of shape:tiny/net/5 died: killed by signal 11" in line for line in failed)
    assert "Not tried, as shape:tiny/net/5 failed: rewrite:tiny/net/5" in end
    assert "Built: fetch 1, ingest 1, shape 1, rewrite 1" in end


def test_nothing_is_left_of_them(ran: tuple[Project, Run]) -> None:
    project, _ = ran
    assert not [*project.store.glob("tmp/*")]


def test_a_guest_that_hangs_is_ended_when_its_time_is_up(tmp_path: Path) -> None:
    project = create(tmp_path / "project", tmp_path / "store", guests.HANGS)
    (config,) = load_all(project.root / "configs").values()
    config = dataclasses.replace(config, limits=ModelLimits(minutes=0.01))  # type: ignore[arg-type]  # 0.6 s
    (step,) = (step for step in plan(config) if step.stage == "shape")
    workspace = Workspace.at(project.root, {"PIPELINE_STORE": str(project.store)})
    scratch = tmp_path / "store" / "tmp" / "scratch"
    (scratch / "out").mkdir(parents=True)
    crew = Crew(workspace, [step], {"PATH": ""})
    request = StageRequest(step.id, {}, {"ingest": StageInput(tmp_path, {}, {})}, {}, scratch / "out")
    try:
        with pytest.raises(WorkerError) as caught:
            crew.work(Work.of(step), request, scratch, lambda: None)
    finally:
        crew.close()
    assert caught.value.what == "shape:tiny/net/15 was ended as it took longer than 0.01 minutes"
    assert "it hangs, or needs more time" in caught.value.why
    assert "raise minutes under limits: in configs/tiny.yaml" in caught.value.remedy
    assert caught.value.where == str(workspace.log(step))
