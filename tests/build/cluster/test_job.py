"""What crosses a cluster: jobs and answers as JSON, and who may take a job."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.build.cluster import on_worker
from pipeline.build.cluster.dispatcher import _is_cut_off
from pipeline.build.cluster.job import Answer, StepFailure, StepJob
from pipeline.build.cluster.member import _refusal
from pipeline.errors import CompileError, PipelineError, StoreError, WorkerError
from pipeline.model import FileEntry, Manifest
from pipeline.plan.keys import CodeDigests, step_key, tool_versions
from pipeline.store.digests import StatMemo
from pipeline.store.manifests import dump_manifest

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


def test_a_worker_that_lost_its_data_is_no_fault_of_the_step() -> None:
    def failed(error: PipelineError) -> Answer:
        return Answer("w", failure=StepFailure.of(error))

    assert _is_cut_off(failed(StoreError("the shared store does not take what a worker would read")))
    assert not _is_cut_off(failed(CompileError("QNN takes no node of it")))
    assert not _is_cut_off(failed(WorkerError("the worker died")))
    assert not _is_cut_off(Answer("w", seconds=1.0))
