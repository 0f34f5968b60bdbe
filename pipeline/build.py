"""Brings one step up to date: nothing to do, restored from the store, or run in a worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from pipeline.config import HubSource
from pipeline.crew import Crew
from pipeline.errors import StoreError, WorkerError
from pipeline.keys import CodeDigests
from pipeline.model import FileEntry, Manifest, StageInput, StageRequest, StageResult
from pipeline.pins import pin
from pipeline.plan import Step
from pipeline.resolve import Resolved, resolve
from pipeline.store import disk_errors, read_manifest, write_atomically
from pipeline.workspace import Workspace


class Outcome(Enum):
    """How a step was brought up to date."""

    CURRENT = "current"
    RESTORED = "restored"
    BUILT = "built"


@dataclass(frozen=True)
class Result:
    """What bringing a step up to date came to, and for how long its worker ran."""

    outcome: Outcome
    seconds: float


def is_current(step: Step, workspace: Workspace) -> bool:
    """Whether the step's last output is what it would produce now, and its payloads are still in the store."""
    manifest = read_manifest(workspace.current(step))
    if manifest is None:
        return False
    resolved = resolve(step, workspace)
    return resolved is not None and resolved.key == manifest.key and workspace.store.intact(manifest)


def bring_up_to_date(
    step: Step, workspace: Workspace, crew: Crew, started: Callable[[], None] = lambda: None
) -> Result:
    """Make the step's current output what it should be; `started` is called when its worker starts.

    Raises:
        PipelineError: the output can't be had.
        WithdrawnError: its worker is not to start any more.
    """
    seconds = 0.0
    with disk_errors(workspace.build, f"a file that {step.id} needs can't be read or written"):
        resolved = resolve(step, workspace) or _pin_and_resolve(step, workspace)
        current = read_manifest(workspace.current(step))
        if current is not None and current.key == resolved.key and workspace.store.intact(current):
            return Result(Outcome.CURRENT, seconds)
        outcome = Outcome.RESTORED
        with workspace.store.lock(resolved.key):
            if workspace.store.get(resolved.key) is None:
                outcome = Outcome.BUILT
                seconds = _run(resolved, workspace, crew, started)
        published = workspace.store.manifest_path(resolved.key).read_bytes()
        write_atomically(workspace.current(step), published, durable=False)
    return Result(outcome, seconds)


def _pin_and_resolve(step: Step, workspace: Workspace) -> Resolved:
    if isinstance(step.config.source, HubSource) and step.stage == "fetch":
        pin(step.config.source.hub, step.config.source.revision, workspace.pins)
        if resolved := resolve(step, workspace):
            return resolved
    raise WorkerError(
        f"{step.id} was started before the steps it needs",
        why=f"no output of {', '.join(name for name in step.after if not workspace.current(name).exists())}",
        remedy=f"run 'doit {step.id}' without --single",
    )


def _run(resolved: Resolved, workspace: Workspace, crew: Crew, started: Callable[[], None]) -> float:
    """Run the step and publish what it wrote; for how many seconds it ran."""
    step, store = resolved.step, workspace.store
    with store.scratch() as scratch:
        inputs = {}
        for role, manifest in resolved.inputs.items():
            folder = scratch / "in" / role
            folder.mkdir(parents=True)
            store.place(manifest, folder)
            inputs[role] = StageInput(folder, manifest.files, manifest.facts)
        out = scratch / "out"
        out.mkdir()
        request = StageRequest(step.id, resolved.params, inputs, resolved.files, out)
        result, seconds = crew.work(step, request, scratch, started)
        _check_unchanged(resolved, workspace)
        reused = _reused(result, resolved.inputs)
        store.publish(step.stage, resolved.key, out, result.facts, reused)
        return seconds


def _check_unchanged(resolved: Resolved, workspace: Workspace) -> None:
    """Refuse an output whose inputs were edited while it was made: it must not be kept under the key of either."""
    again = resolve(resolved.step, replace(workspace, code=CodeDigests(workspace.memo)))
    if again is None or again.key != resolved.key:
        raise StoreError(
            f"something that {resolved.step.id} is made from changed while it ran",
            why="a file of the source, of the calibration set or of the code was edited; the output is dropped",
            remedy="run the same command again",
        )


def _reused(result: StageResult, inputs: Mapping[str, Manifest]) -> dict[str, FileEntry]:
    return {name: inputs[role].files[file] for name, (role, file) in result.reused.items()}
