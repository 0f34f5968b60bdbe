"""What crosses a cluster: jobs and answers as JSON, and who may take a job."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.build.cluster import dispatcher, on_worker
from pipeline.build.cluster.dispatcher import Dispatcher
from pipeline.build.cluster.job import Answer, StepFailure, StepJob
from pipeline.build.cluster.member import ClusterMember, _refusal
from pipeline.build.crew import Crew
from pipeline.build.worker import _error_text, load_answer
from pipeline.config.load import load
from pipeline.config.project_file import ProjectFile
from pipeline.errors import CompileError, PipelineError, StoreError, WaitingError, WorkerError
from pipeline.model import FileEntry, Manifest
from pipeline.plan.keys import CodeDigests, step_key, tool_versions
from pipeline.plan.planner import plan
from pipeline.plan.resolve import Resolved
from pipeline.plan.workspace import Workspace
from pipeline.store.digests import StatMemo
from pipeline.store.durable import no_room
from pipeline.store.manifests import dump_manifest
from tests.support import tiny_project
from tests.support.cluster import cluster

GIVEN = Manifest("ingest", "0" * 64, {"a/b": FileEntry("1" * 64, 7)}, {"inputs": []})


@pytest.fixture
def code(tmp_path: Path) -> CodeDigests:
    return CodeDigests(StatMemo(tmp_path / "memo.json"))


@pytest.fixture
def job(code: CodeDigests) -> StepJob:
    own, tools = code.stage("shape"), tool_versions("shape")
    key = step_key("shape", code=own, params={"a": 1}, inputs={"model": GIVEN}, files={}, tools=tools)
    return StepJob(
        key, "shape", "m/c/8", "m.yaml", 120, own, tools, '{"a": 1}', {"model": dump_manifest(GIVEN).decode()}
    )


def test_a_job_is_the_same_after_json(job: StepJob) -> None:
    again = StepJob.from_json(json.loads(json.dumps(job.to_json())))
    assert again == job
    assert again.manifests() == {"model": GIVEN}
    assert again.parameters() == {"a": 1}


def test_an_error_is_the_same_after_json() -> None:
    error = CompileError("what", where="where", why="why", remedy="remedy")
    answer = Answer.from_json(json.loads(json.dumps(Answer("w", failure=StepFailure.of(error)).to_json())))
    assert answer.failure is not None
    found = answer.failure.error()
    assert type(found) is CompileError
    assert str(found) == str(error)


def test_a_class_that_is_no_users_is_told_as_the_one_above() -> None:
    class OwnError(WorkerError):
        """A detail of ours."""

    assert StepFailure.of(OwnError("what")).kind == "WorkerError"


def test_a_job_of_the_same_code_and_packages_is_taken(job: StepJob, code: CodeDigests) -> None:
    assert _refusal(job, code) == ""


def test_a_job_of_other_packages_code_or_inputs_is_not(job: StepJob, code: CodeDigests) -> None:
    other = replace(job, tools={**job.tools, "onnx": "0.1"})
    assert _refusal(other, code).startswith("onnx is ")
    assert "the code of stage shape is another one" in _refusal(replace(job, code="0" * 64), code)
    forged = replace(job, params='{"a": 2}')
    assert _refusal(forged, code) == "the same work has another key here"
    with pytest.raises(ValueError, match="model"):
        replace(job, inputs={"model": "{}"}).manifests()


def test_a_worker_announces_its_names_and_steps_use_none_of_them_up() -> None:
    announced = on_worker.resources(["x86_64", "my host"])
    assert on_worker.host_names({**announced, "GPU": 1.0}) == {"x86_64", "my host"}
    assert min(announced.values()) > 0


def test_a_process_that_is_no_worker_of_ours_says_so(job: StepJob) -> None:
    with pytest.raises(RuntimeError, match=r"docs/cluster\.md"):
        on_worker.make(job.to_json())


@pytest.mark.parametrize(
    ("error", "asked"), [(StoreError("mine"), 1), (CompileError("QNN takes no node of it"), 1), (no_room("it"), 5)]
)
def test_a_stage_that_fails_is_asked_for_once_and_a_disk_that_fails_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: PipelineError, asked: int
) -> None:
    """`asked` workers are asked for a step whose stage, real member and real dispatcher between, ends with `error`."""
    # A member that leaves ends the children of its process, for good: other tests have this one as well.
    monkeypatch.setattr("pipeline.processes.process._closing", False)
    worker = tiny_project.create(tmp_path / "worker", tmp_path / "worker" / ".build" / "store")
    (tmp_path / "shared").mkdir()
    monkeypatch.setenv("PIPELINE_SHARED_STORE", str(tmp_path / "shared"))
    member = ClusterMember(worker.root, "w", 1)
    step = next(step for step in plan(load(worker.root / tiny_project.CONFIG)) if step.stage == "shape")
    tools, params = tool_versions("shape"), step.params.to_json()
    own = CodeDigests(StatMemo(tmp_path / "memo.json")).stage("shape")
    key = step_key("shape", code=own, params=params, inputs={}, files={}, tools=tools)
    resolved = Resolved(step, step.params, {}, {}, key)

    def fail(*_: object) -> None:
        (tmp_path / "answer.json").write_text(_error_text(error, {"inputs": {}, "out": "out"}), "utf-8")
        load_answer(tmp_path / "answer.json")

    monkeypatch.setattr(Crew, "work", fail)
    workspace = Workspace.at(worker.root).configured(ProjectFile())
    assert workspace.shared is not None
    workspace.shared.open()
    answers: list[Answer] = []
    left_alone: list[set[str]] = []

    class Asks(Dispatcher):
        def _asked(self, job: StepJob, _: Resolved, cut_off: Collection[str] = (), *, refused: bool = False) -> Answer:
            left_alone.append({*cut_off})
            answers.append(Answer.from_json(json.loads(json.dumps(member.make(job).to_json()))))
            return answers[-1]

        def _pause(self, _: float) -> None:
            pass

    try:
        with pytest.raises(type(error), match=error.what) as caught:
            Asks("tcp://nobody:1", "here", workspace).make(resolved, lambda: None)
    finally:
        member.close()
        workspace.shared.close()
    assert len(answers) == asked
    assert left_alone == [set(), *[{"w"}] * (asked - 1)]
    assert caught.value.what == error.what


@pytest.mark.slow
@pytest.mark.parametrize("status", ["connecting", "closed"])
def test_a_scheduler_that_is_lost_before_it_is_asked_is_looked_for_again(
    status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shared").mkdir()
    monkeypatch.setenv("PIPELINE_SHARED_STORE", str(tmp_path / "shared"))
    monkeypatch.setattr(dispatcher, "_ANSWERS_S", 1.0)  # for which a client looks for its scheduler
    project = tiny_project.create(tmp_path / "here", tmp_path / "here" / ".build" / "store")
    step = next(step for step in plan(load(project.root / tiny_project.CONFIG)) if step.stage == "shape")
    resolved = Resolved(step, step.params, {}, {}, "0" * 64)
    asks = Dispatcher("", "here", Workspace.at(project.root).configured(ProjectFile()))
    with cluster(tmp_path / "cluster") as made:
        asks._url = made.url
        client = asks._connected()
        assert made.scheduler is not None
        made.scheduler.kill()
        made.scheduler.wait()
        deadline = time.monotonic() + 30
        while client.status != status and time.monotonic() < deadline:
            time.sleep(0.01)
        assert client.status == status
        assert asks._asked(StepJob.of(resolved, "0" * 64, {}), resolved) is None
        made.start_scheduler()
        try:
            assert asks._connected().status == "running"
        finally:
            asks.close()


@pytest.mark.slow
def test_a_worker_that_was_refused_ends_no_step_that_waits_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler that started again knows none of its workers for a moment."""
    (tmp_path / "shared").mkdir()
    monkeypatch.setenv("PIPELINE_SHARED_STORE", str(tmp_path / "shared"))
    monkeypatch.setattr(dispatcher, "_LOOKS_S", 0.2)
    project = tiny_project.create(tmp_path / "here", tmp_path / "here" / ".build" / "store")
    step = next(step for step in plan(load(project.root / tiny_project.CONFIG)) if step.stage == "shape")
    resolved = Resolved(step, step.params, {}, {}, "0" * 64)
    with cluster(tmp_path / "cluster") as made, ThreadPoolExecutor(1) as thread:
        asks = Dispatcher(made.url, "here", Workspace.at(project.root).configured(ProjectFile()))
        asks._refused["old"] = "it runs another commit"
        answer = thread.submit(asks._asked, StepJob.of(resolved, "0" * 64, {}), resolved)
        with pytest.raises(TimeoutError):
            answer.result(timeout=2)
        with pytest.raises(WaitingError, match="no worker"):
            asks._asked(StepJob.of(resolved, "0" * 64, {}), resolved, refused=True)
        assert made.scheduler is not None
        made.scheduler.kill()
        made.scheduler.wait()
        assert answer.result(timeout=60) is None
        asks.close()


def test_dask_hardly_looks_at_what_threads_of_a_worker_do() -> None:
    program = (
        "import dask, distributed\n"
        "from pipeline.build.cluster import on_worker\n"
        "before = {name: dask.config.get(name) for name in on_worker._UNWATCHED}\n"  # a name it lacks is a KeyError
        "on_worker.leave_unwatched()\n"
        "assert all(dask.config.get(name) != value for name, value in before.items()), before\n"
    )
    pytest.importorskip("distributed")
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[3])
