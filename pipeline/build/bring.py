"""Brings one step up to date: nothing to do, restored from the store, or run in a worker.

Points from an error about sizes to those that `doit init` guessed: one of them may be what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TypeVar

from pipeline.build.crew import Crew
from pipeline.build.work import Work
from pipeline.config.guesses import guesses
from pipeline.config.yaml.problems import dotted
from pipeline.contracts import fetch
from pipeline.errors import (
    CalibrationError,
    ConfigError,
    ModelError,
    PipelineError,
    SourceError,
    StoreError,
    WaitingError,
    WorkerError,
)
from pipeline.frozen import dataclass
from pipeline.inputs.hub import remembered
from pipeline.inputs.pins import pin
from pipeline.model import FileEntry, Manifest, StageInput, StageRequest, StageResult
from pipeline.plan import hosts
from pipeline.plan.named_files import at_its_place, sampled_at
from pipeline.plan.resolve import Resolved, resolve
from pipeline.plan.steps import Step
from pipeline.plan.workspace import Workspace
from pipeline.store import locks
from pipeline.store.durable import disk_errors
from pipeline.store.manifests import read_manifest, write_manifest
from pipeline.store.store import Store

_DAMAGED = (
    "what the shared store had of it is damaged; a host that has it writes it there anew when it asks again:"
    " a day after it last did, or once its .build/shared.json was deleted"
)


class Outcome(Enum):
    """How a step was brought up to date."""

    CURRENT = "current"
    RESTORED = "restored"
    SHARED = "shared"
    BUILT = "built"


@dataclass(frozen=True)
class Result:
    """How a step was brought up to date, and for how many seconds its worker ran."""

    outcome: Outcome
    seconds: float


class ChangedError(StoreError):
    """An input of a step changed while the step ran. `replaced` is the stage whose output another build replaced."""

    replaced: str = ""


class _MadeElsewhereError(Exception):
    """Another step with the same key, perhaps of another build, has been made or is being made."""


def is_current(step: Step, workspace: Workspace) -> bool:
    """Whether the step's last output is what it would produce now, and its payloads are still in the store."""
    path = workspace.current(step)
    manifest = read_manifest(path)
    if manifest is None or manifest.stage != step.stage:
        if path.exists():
            workspace.store.tell(f"damaged: what is known of {step.id}; it is looked up again ({path})")
        return False
    resolved = resolve(step, workspace)
    if resolved is None or resolved.key != manifest.key or not workspace.store.intact(manifest):
        return False
    workspace.store.used(manifest)
    _share(manifest, workspace)
    return True


Shown = Callable[[Step], AbstractContextManager[Callable[[], None]]]
"""A context in which a step is brought up to date. It yields the function to call when the worker starts."""


def bring_up_to_date(
    step: Step, workspace: Workspace, crew: Crew, started: Callable[[], None] = lambda: None
) -> Result:
    """Make the step's current output what it should be; `started` is called when its worker starts.

    Raises:
        PipelineError: the output can't be had; DamagedError: one of an input's files went bad since it was looked at;
            WaitingError: no store has it, and this host may not make it.
        WithdrawnError: its worker is not to start any more.
    """
    with disk_errors(workspace.build, f"a file that {step.id} needs can't be read or written"):
        resolved = resolve(step, workspace) or _pin_and_resolve(step, workspace)
        current = read_manifest(workspace.current(step))
        if current is not None and current.key == resolved.key and workspace.store.intact(current):
            _share(current, workspace)
            return Result(Outcome.CURRENT, 0.0)
        outcome, seconds = Outcome.RESTORED, 0.0
        while (manifest := workspace.store.get(resolved.key)) is None:
            try:
                if (manifest := _from_shared(resolved, workspace)) is not None:
                    outcome = Outcome.SHARED
                    break
                if crew.cluster is not None and crew.cluster.takes(resolved):
                    seconds = crew.cluster.make(resolved, started)
                    if (manifest := _from_shared(resolved, workspace)) is None:
                        raise crew.cluster.lost(resolved)
                else:
                    _check_host(resolved, workspace)
                    manifest, seconds = _run(resolved, workspace, crew, started)
                outcome = Outcome.BUILT
                break
            except _MadeElsewhereError:
                workspace.store.wait(resolved.key, f"{step.id}, which is being made")
        workspace.store.used(manifest)
        with workspace.scratch.folder() as folder:
            write_manifest(workspace.current(step), manifest, durable=False, folder=folder)
        _share(manifest, workspace)
    return Result(outcome, seconds)


def needed(step: Step, steps: Mapping[str, Step]) -> list[Step]:
    """The steps that a step stands on, in the order of the plan."""
    reached: set[str] = set()
    pending = [*step.after]
    while pending:
        name = pending.pop()
        if name not in reached:
            reached.add(name)
            pending += steps[name].after
    return [each for each in steps.values() if each.id in reached]


def _pin_and_resolve(step: Step, workspace: Workspace) -> Resolved:
    if step.asked is not None:
        what = f"'{step.asked.revision}' of {step.asked.hub}"
        besides = f"{what} is not pinned here: the host that fetches it writes configs/pins.yaml, to be committed"
        hosts.check_step(step, step.params, {}, workspace.project, besides=besides)
        with workspace.scratch.folder() as folder:
            lock, tell = folder.parent / "pins.lock", workspace.store.tell
            # Of two that pin at once, one would else write without what the other has written.
            with locks.held(lock, "the file of pins", tell=tell):
                pin(step.asked.hub, step.asked.revision, workspace.pins, folder=folder)
        if resolved := resolve(step, workspace):
            return resolved
    raise WorkerError(
        f"{step.id} was started before the steps it needs",
        why=f"no output of {', '.join(name for name in step.after if not workspace.current(name).exists())}",
        remedy=f"run 'doit {step.id}' without --single",
    )


def _check_host(resolved: Resolved, workspace: Workspace) -> None:
    """Raise WaitingError if this host may not make the step."""
    check = partial(hosts.check_step, resolved.step, resolved.params, resolved.inputs, workspace.project)
    shared = workspace.shared
    unread = shared.unread if shared else ""
    try:
        check(besides=f"the shared store, where it may be, can't be read: {unread}" if unread else "")
    except WaitingError:
        if shared and shared.drop_damaged(resolved.key):
            check(besides=_DAMAGED)
        raise


def _from_shared(resolved: Resolved, workspace: Workspace) -> Manifest | None:
    """What another machine has made under this key, restored from the shared store; None if that is not to be had.

    Raises:
        _MadeElsewhereError: somebody else restores or makes it here.
    """
    step, store, shared = resolved.step, workspace.store, workspace.shared
    found = shared.find(resolved.key, step.stage) if shared else None
    if shared is None or found is None:
        return None
    commit = _commit_memory(resolved, workspace)
    if commit is not None and (changed := remembered.changed(commit, found.files)):
        what = f"{changed[0]} is not what this commit held when it was first fetched ({commit})"
        store.tell(f"not restored from the shared store: {step.id}: {what}")
        return None
    with ExitStack() as claimed:
        _claim(resolved.key, store, claimed)
        if not shared.fetch(found, step.id):
            return None
        if commit is not None:
            with workspace.scratch.folder() as folder:
                remembered.remember(commit, found.files, folder)
        return found


def _share(manifest: Manifest, workspace: Workspace) -> None:
    """Have an output of this build in the shared store too, if it is not known to be there."""
    if workspace.shared is not None:
        workspace.shared.offer(manifest)


def _run(resolved: Resolved, workspace: Workspace, crew: Crew, started: Callable[[], None]) -> tuple[Manifest, float]:
    """Run the step and publish what it wrote; for how many seconds it ran.

    The key is claimed when the step's turn has come: who waits for a turn keeps nobody from making the step, and who
    waits for another build to make it takes nobody's turn.

    Raises:
        _MadeElsewhereError: somebody else has done it, or is at it.
    """
    step, store = resolved.step, workspace.store
    with ExitStack() as claimed, store.scratch() as scratch:
        inputs = {
            role: StageInput(scratch / "in" / role, manifest.files, manifest.facts)
            for role, manifest in resolved.inputs.items()
        }

        def claim() -> None:
            _claim(resolved.key, store, claimed)
            for role, manifest in resolved.inputs.items():
                inputs[role].folder.mkdir(parents=True)
                store.place(manifest, inputs[role].folder)
            started()

        out = scratch / "out"
        out.mkdir()
        request = StageRequest(step.id, resolved.params.to_json(), inputs, resolved.files, out)
        try:
            result, seconds = crew.work(Work.of(step), request, scratch, claim)
        except (ConfigError, SourceError, ModelError, CalibrationError) as error:
            raise with_guesses(_placed(error, step), step) from error
        _check_unchanged(resolved, workspace)
        files = store.adopt(out, _reused(result, resolved.inputs))
        made = Manifest(step.stage, resolved.key, files, result.facts)
        _compare_with_commit(made, resolved, workspace, scratch)
        _compare_with_known(made, step, workspace)
        store.record(made)
        return made, seconds


def _placed(error: PipelineError, step: Step) -> PipelineError:
    """The error with the file, line and column of what it is about, where the config has that."""
    match error, step.stage:
        case ConfigError(), _:
            own = f"{dotted(('components', step.component or ''))}.{error.where}"
            names = (name for name in (own, error.where) if name in step.config.places)
            return error.but(where=next((step.config.places[name] for name in names), error.where))
        case SourceError(), "fetch":
            return at_its_place(error, step)
        case ModelError(), "ingest":
            return error.at(step.config.place(dotted(("components", step.component or "", "file"))))
        case CalibrationError(), "samples":
            return sampled_at(error, step)
    return error


def _claim(key: str, store: Store, claimed: ExitStack) -> None:
    """Claim a key until the stack ends; raises _MadeElsewhereError if somebody else has, or has made it."""
    try:
        claimed.enter_context(store.claimed(key))
    except locks.TakenError:
        raise _MadeElsewhereError from None
    if store.get(key) is not None:
        raise _MadeElsewhereError


def _compare_with_commit(made: Manifest, resolved: Resolved, workspace: Workspace, scratch: Path) -> None:
    """Refuse files of a hub's commit that are not what they were when a build that uses this store first fetched it."""
    path, asked = _commit_memory(resolved, workspace), resolved.step.asked
    if path is None or asked is None:
        return
    if found := remembered.changed(path, made.files):
        name, before, now = found
        raise SourceError(
            f"{name} of {asked.hub} changed under a pinned revision",
            where=f"{resolved.step.id}, at commit {path.stem.rpartition('@')[2]}",
            why=f"its SHA-256 was {before} when it was first fetched, and is {now} now: a commit never changes",
            remedy=f"find out who changed it; to take the new file, delete {path}",
        )
    remembered.remember(path, made.files, scratch)


def _commit_memory(resolved: Resolved, workspace: Workspace) -> Path | None:
    """The file that remembers what the commit held that a step fetches; None for another step."""
    params = resolved.params
    if not isinstance(params, fetch.Params) or params.commit is None:
        return None
    return remembered.path_of(workspace.store.root, params.commit.hub, params.commit.revision)


def _compare_with_known(made: Manifest, step: Step, workspace: Workspace) -> None:
    """Say so when a step came out otherwise than before."""
    known = workspace.store.known(made.key)
    if known is None:
        current = read_manifest(workspace.current(step))
        known = current if current is not None and current.key == made.key else None
    if known is None or known.files == made.files:
        return
    name = next(name for name in {**made.files, **known.files} if made.files.get(name) != known.files.get(name))
    before, now = (manifest.files[name].sha256 if name in manifest.files else "none" for manifest in (known, made))
    workspace.store.tell(f"{step.id} was made again and came out otherwise: {name} is {now}, was {before}")


def _check_unchanged(resolved: Resolved, workspace: Workspace) -> None:
    """Refuse an output whose inputs were edited while it was made: it must not be kept under the key of either."""
    again = resolve(resolved.step, replace(workspace, code=workspace.code.now()))
    if again is not None and again.key == resolved.key:
        return
    what = f"something that {resolved.step.id} is made from changed while it ran"
    now = {role: (each.files, each.facts) for role, each in again.inputs.items()} if again is not None else {}
    replaced = [made for role, made in resolved.inputs.items() if now.get(role) != (made.files, made.facts)]
    if not replaced:
        raise ChangedError(
            what,
            why="a file of the source, of the calibration set or of the code was edited; the output is dropped",
            remedy="run the same command again",
        )
    error = ChangedError(
        what,
        why=f"another build in this folder made another output of {replaced[0].stage}; the output is dropped",
        remedy="run the same command again when that build has ended",
    )
    error.replaced = replaced[0].stage
    raise error


def _reused(result: StageResult, inputs: Mapping[str, Manifest]) -> dict[str, FileEntry]:
    return {name: inputs[role].files[file] for name, (role, file) in result.reused.items()}


_SIZED = ("shape", "rewrite")
"""Stages that fail for sizes as a whole; elsewhere an error names the axis."""
_Error = TypeVar("_Error", bound=PipelineError)


def with_guesses(error: _Error, step: Step) -> _Error:
    """The error, whose remedy begins with the sizes that are guessed, if it may be about one."""
    config = step.config
    guessed = {*guesses(config.path)}
    sizes: dict[str, list[int]] = {axis: [size] for axis, size in config.fixed.items()}
    for bucket in config.buckets:
        for axis, size in bucket.axes.items():
            sizes.setdefault(axis, []).append(size)
    own = {axis: dict.fromkeys(each) for axis, each in sizes.items() if axis in guessed}
    if step.stage not in _SIZED:
        own = {axis: each for axis, each in own.items() if f"{axis!r} is" in error.what}
    if not own:
        return error
    named = [
        f"{axis!r}: {', '.join(map(str, each))} ({config.place(dotted(('fixed', axis)), dotted(('buckets', axis)))})"
        for axis, each in own.items()
    ]
    told = f"look first at what 'doit init' guessed: {'; '.join(named)}. Write what the application gives the model"
    return error.but(remedy=f"{told}; or {error.remedy}" if error.remedy else told)
