"""Brings one step up to date: nothing to do, restored from the store, or run in a worker."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from pipeline import process
from pipeline.config import HubSource
from pipeline.errors import StoreError, WorkerError
from pipeline.keys import CodeDigests
from pipeline.model import FileEntry, Manifest, StageInput, StageRequest, StageResult
from pipeline.pins import pin
from pipeline.plan import Step
from pipeline.resolve import Resolved, resolve
from pipeline.store import disk_errors, read_manifest, write_manifest
from pipeline.worker import dump_request, load_answer
from pipeline.workspace import Workspace


class Outcome(Enum):
    """How a step was brought up to date."""

    CURRENT = "current"
    RESTORED = "restored"
    BUILT = "built"


@dataclass(frozen=True)
class Result:
    """What bringing a step up to date came to, and how long the work took."""

    outcome: Outcome
    seconds: float


def is_current(step: Step, workspace: Workspace) -> bool:
    """Whether the step's last output is what it would produce now, and its payloads are still in the store."""
    manifest = read_manifest(workspace.current(step))
    if manifest is None:
        return False
    resolved = resolve(step, workspace)
    return resolved is not None and resolved.key == manifest.key and workspace.store.intact(manifest)


def bring_up_to_date(step: Step, workspace: Workspace) -> Result:
    """Make the step's current output what it should be; raises PipelineError when it can't be."""
    started = time.monotonic()
    with disk_errors(workspace.build, f"a file that {step.id} needs can't be read or written"):
        resolved = resolve(step, workspace) or _pin_and_resolve(step, workspace)
        current = read_manifest(workspace.current(step))
        if current is not None and current.key == resolved.key and workspace.store.intact(current):
            return Result(Outcome.CURRENT, 0.0)
        outcome = Outcome.RESTORED
        with workspace.store.lock(resolved.key):
            manifest = workspace.store.get(resolved.key)
            if manifest is None:
                outcome = Outcome.BUILT
                manifest = _run(resolved, workspace)
        write_manifest(workspace.current(step), manifest)
    return Result(outcome, time.monotonic() - started)


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


def _run(resolved: Resolved, workspace: Workspace) -> Manifest:
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
        answer = scratch / "answer.json"
        (scratch / "request.json").write_text(dump_request(request, step.stage, answer), "utf-8")
        result = _work(step, scratch, answer, workspace)
        _check_unchanged(resolved, workspace)
        reused = _reused(result, resolved.inputs)
        return store.publish(step.stage, resolved.key, out, result.facts, reused)


def _check_unchanged(resolved: Resolved, workspace: Workspace) -> None:
    """Refuse an output whose inputs were edited while it was made: it must not be kept under the key of either."""
    again = resolve(resolved.step, replace(workspace, code=CodeDigests(workspace.memo)))
    if again is None or again.key != resolved.key:
        raise StoreError(
            f"something that {resolved.step.id} is made from changed while it ran",
            why="a file of the source, of the calibration set or of the code was edited; the output is dropped",
            remedy="run the same command again",
        )


def _work(step: Step, scratch: Path, answer: Path, workspace: Workspace) -> StageResult:
    log = workspace.log(step)
    command = [sys.executable, "-m", "pipeline.worker", str(scratch / "request.json")]
    status = process.run(command, log=log, cwd=scratch, env=_environment(workspace, step, log))
    try:
        return load_answer(answer)
    except (OSError, ValueError, KeyError) as error:
        tail = "".join(f"\n    | {line}" for line in log.read_text("utf-8", "replace").splitlines()[-12:])
        raise WorkerError(
            f"the worker of {step.id} died: {process.exit_reason(status)}",
            where=str(log),
            why=f"it left no answer; the end of its log:{tail}" if tail else "it left no answer and an empty log",
            remedy="run the same command again; everything already built is kept",
        ) from error


def _environment(workspace: Workspace, step: Step, log: Path) -> Mapping[str, str]:
    environ = dict(os.environ)
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(workspace.root), environ.get("PYTHONPATH", ""))))
    environ["PYTHONHASHSEED"] = "0"  # set order must not reach the output
    environ["PYTHONUNBUFFERED"] = "1"  # the log is read while the step runs
    environ["PYTHONUTF8"] = "1"
    environ["PIPELINE_STEP_LOG"] = str(log)
    if step.stage != "fetch":
        environ.pop("HF_TOKEN", None)
    return environ


def _reused(result: StageResult, inputs: Mapping[str, Manifest]) -> dict[str, FileEntry]:
    return {name: inputs[role].files[file] for name, (role, file) in result.reused.items()}
