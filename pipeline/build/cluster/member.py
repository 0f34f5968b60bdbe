"""A worker of a cluster: makes the steps that builds on other machines ask for, from the shared store and into it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.build.cluster.job import Answer, StepFailure, StepJob
from pipeline.build.crew import Crew
from pipeline.config import project_file
from pipeline.errors import ConfigError, PipelineError, StoreError, WorkerError
from pipeline.model import FileEntry, Manifest, StageInput, StageRequest
from pipeline.plan.keys import CodeDigests, step_key, tool_versions
from pipeline.plan.workspace import Workspace
from pipeline.store import locks

if TYPE_CHECKING:
    from pipeline.store.shared.tier import SharedStore

_LOG_BYTES = 64_000
_TRIES = 3


class _StageFailedError(Exception):
    """A stage failed for a reason of its own: it would fail on every worker."""

    def __init__(self, error: PipelineError) -> None:
        super().__init__(str(error))
        self.error = error


class ClusterMember:
    """One checkout that makes steps for others, several at a time. Safe to use from several threads."""

    def __init__(self, root: Path, name: str, slots: int) -> None:
        """Raises ConfigError where the checkout names no shared store."""
        self.name = name
        self._settings = project_file.load(root / "configs")
        self._workspace = Workspace.at(root)
        self._shared: SharedStore | None = None
        self._opening = threading.Lock()
        self._place()
        self._crew = Crew(self._workspace, ())
        self._crew.set_up(slots, keep_going=True)
        self._workspace.store.collect()
        self._open = ExitStack()
        self._open.enter_context(self._workspace.store.in_use())

    def close(self) -> None:
        """End what runs."""
        self._crew.stop()
        if self._shared:
            self._shared.close()
        self._open.close()

    def make(self, job: StepJob) -> Answer:
        """Make what a job asks for, unless it is there."""
        workspace = replace(self._workspace, code=CodeDigests(self._workspace.memo))
        log = workspace.log(job)
        seconds = 0.0
        try:
            if refusal := _refusal(job, workspace.code):
                return Answer(self.name, refusal)
            shared = self._place()
            manifest = workspace.store.get(job.key)
            if manifest is None and shared.find(job.key, job.stage) is None:
                manifest, seconds = self._run(job, workspace, shared)
            if manifest is not None:
                shared.offer(manifest)
                shared.settle([manifest.key])
        except _StageFailedError as failed:
            return self._failed(failed.error, log)
        except PipelineError as error:
            return self._failed(error, log, is_cut_off=isinstance(error, StoreError))
        return Answer(self.name, seconds=seconds, log=_end_of(log) if seconds else "")

    def _failed(self, error: PipelineError, log: Path, *, is_cut_off: bool = False) -> Answer:
        failure = StepFailure.of(_local(error, self.name, log))
        return Answer(self.name, failure=failure, log=_end_of(log), is_cut_off=is_cut_off)

    def _run(self, job: StepJob, workspace: Workspace, shared: SharedStore) -> tuple[Manifest, float]:
        store, work = workspace.store, job.work
        with _claimed(workspace, job), store.scratch() as scratch:
            if (made := store.get(job.key)) is not None:
                return made, 0.0
            inputs: dict[str, StageInput] = {}
            manifests = job.manifests()
            for role, manifest in manifests.items():
                _restore(manifest, f"what {work.id} needs", shared, workspace)
                inputs[role] = StageInput(scratch / "in" / role, manifest.files, manifest.facts)
                inputs[role].folder.mkdir(parents=True)
                store.place(manifest, inputs[role].folder)
            out = scratch / "out"
            out.mkdir()
            request = StageRequest(work.id, job.parameters(), inputs, {}, out)
            try:
                result, seconds = self._crew.work(work, request, scratch, lambda: None)
            except PipelineError as error:
                if error.of_machine:
                    raise
                raise _StageFailedError(error) from error
            reused: Mapping[str, FileEntry] = {
                name: manifests[role].files[file] for name, (role, file) in result.reused.items()
            }
            return store.publish(job.stage, job.key, out, result.facts, reused), seconds

    def _place(self) -> SharedStore:
        """The shared store; opened anew after it was out of reach."""
        with self._opening:
            if self._shared is None or self._shared.unread:
                if self._shared is not None:
                    self._shared.close()
                self._shared = self._workspace.configured(self._settings).shared
                if self._shared is None:
                    raise ConfigError(
                        "a worker of a cluster needs a shared store",
                        where="configs/project.yaml",
                        why="outputs travel by it, and neither this file nor PIPELINE_SHARED_STORE names one",
                        remedy="write store: {shared: URL}, the one that the builds have, too",
                    )
                self._shared.open()
            return self._shared


def _refusal(job: StepJob, code: CodeDigests) -> str:
    """What of this checkout is not as the build has it; empty if a step comes out the same here."""
    tools = tool_versions(job.stage)
    differ = {name: (tools.get(name, "none"), version) for name, version in job.tools.items()}
    told = [f"{name} is {here} here and {there} there" for name, (here, there) in differ.items() if here != there]
    if job.code != code.stage(job.stage):
        told.append(f"the code of stage {job.stage} is another one")
    if told:
        return "; ".join(told)
    key = step_key(job.stage, code=job.code, params=job.parameters(), inputs=job.manifests(), files={}, tools=tools)
    return "" if key == job.key else "the same work has another key here"


def _restore(manifest: Manifest, what: str, shared: SharedStore, workspace: Workspace) -> None:
    """Have the payloads of an input in the store of this machine."""
    for _ in range(_TRIES):
        if workspace.store.intact(manifest) or shared.fetch_payloads(manifest, what):
            return
    raise StoreError(
        f"{what} can't be restored from the shared store",
        why=shared.unread or "a file is missing or damaged there",
        remedy="run the build again: what it has and the shared store lacks is written there anew",
    )


@contextmanager
def _claimed(workspace: Workspace, job: StepJob) -> Iterator[None]:
    """Hold the key of a job; a step that another thread or process is at is waited for."""
    while True:
        with ExitStack() as stack:
            try:
                stack.enter_context(workspace.store.claimed(job.key))
            except locks.TakenError:
                workspace.store.wait(job.key, job.work.id)
                continue
            yield
            return


def _local(error: PipelineError, name: str, log: Path) -> PipelineError:
    """An error as another machine can use it: it says on which worker it was, and names no path of it."""
    where = f"worker {name}" + (f", {error.where}" if error.where and error.where != str(log) else "")
    kept = error.but(where=where)
    return kept if isinstance(error, StoreError | WorkerError) else error


def _end_of(log: Path) -> str:
    with contextlib.suppress(OSError):
        return log.read_bytes()[-_LOG_BYTES:].decode("utf-8", "replace")
    return ""
