"""Writes `artifacts/<model>/report.html` where something changed, and `artifacts/report.html` over all models.

Pages are for readers. They are no output of a step: no key, manifest or digest depends on them. What a page needs of
earlier runs is kept in `.build/pages/<model>.json`, which may be lost.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from pipeline.build.bring import is_current
from pipeline.config.guesses import guesses
from pipeline.config.load import ModelConfig
from pipeline.contracts.codec import ContractError
from pipeline.errors import PipelineError, StoreError
from pipeline.frozen import dataclass
from pipeline.model import Json, Manifest
from pipeline.plan.steps import ON_DEMAND, Step
from pipeline.plan.workspace import Workspace
from pipeline.report.page import PAGE
from pipeline.report.run_report import RunRecord
from pipeline.report.summary import Ran
from pipeline.store.durable import disk_errors, disk_remedy, write_atomically

_PAGES = "pages"
_MOST_BYTES = 16 << 20


@dataclass(frozen=True)
class BuiltModel:
    """A model as a run left it: its steps, those that are `seen` to be current, and the last outputs of all of them.

    `again`: its page has to be written, even if nothing seems to have changed.
    """

    config: ModelConfig
    steps: Sequence[Step]
    seen: Collection[str]
    manifests: Mapping[str, Manifest]
    again: bool = False

    @property
    def digest(self) -> str:
        """A digest of all that decides what the page says, but for the run."""
        keys = {step.id: self.manifests[step.id].key for step in self.steps if self._is_seen(step)}
        told = [keys, guesses(self.config.path)]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()

    def _is_seen(self, step: Step) -> bool:
        return step.id in self.seen and step.id in self.manifests and step.stage not in ON_DEMAND


@dataclass(frozen=True)
class _Kept:
    """What is remembered of a page: the run and artifacts that it shows, and those that it compares them with."""

    digest: str = ""
    page: Mapping[str, Json] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    artifacts: Mapping[str, Any] = field(default_factory=dict)
    before: Mapping[str, Any] = field(default_factory=dict)
    """`started`, and `artifacts`."""


def path_of(model: str, workspace: Workspace) -> Path:
    """Where the page of a model is."""
    return workspace.artifacts / model / PAGE


def pages_of(model: str, workspace: Workspace) -> list[Path]:
    """The files that are written for a model's page: the page, and what the next page needs of it."""
    return [path_of(model, workspace), _state(model, workspace)]


def write_pages(
    models: Iterable[BuiltModel],
    run: RunRecord | None,
    known: Collection[str],
    workspace: Workspace,
    refused: Callable[[StoreError], None] = print,
) -> list[Path]:
    """Write the pages of these models that are out of date, and the one over all `known` models.

    `run` is the record of the last run, None if there is none. Returns the files that were written. If the disk refuses
    one, `refused` gets the error; a build goes on, as the artifacts are there all the same.
    """
    written: list[Path] = []
    try:
        for model in models:
            kept = _read(model.config.name, workspace)
            path = path_of(model.config.name, workspace)
            news = model.digest != kept.digest or _is_news(run, model)
            if model.again or news or not path.is_file():
                shown = run if _is_news(run, model) or not kept.run else kept.run
                _write_model(model, kept, shown, path, workspace)
                written.append(path)
        index = workspace.artifacts / PAGE
        if written or (workspace.artifacts.is_dir() and not index.is_file() and any(_summaries(known, workspace))):
            written += _write_index(index, run, known, workspace)
    except OSError as error:
        what = f"the report can't be written: {error.strerror or error}"
        where = str(error.filename2 or error.filename or workspace.artifacts)
        refused(StoreError(what, where=where, remedy=disk_remedy(error)))
    return written


def built_models(ran: Ran, run: RunRecord, workspace: Workspace) -> list[BuiltModel]:
    """The models that a run was about as a whole, and those whose wrong values it looked for.

    A run about some of a model's targets leaves the page as it is, if there is one.
    """
    found = []
    for name, steps in ran.planned.items():
        own = {step.id for step in steps if step.stage not in ON_DEMAND}
        config = steps[0].config
        there = path_of(name, workspace).is_file()
        narrowed = {target.soc for step in steps for target in step.targets} != {each.soc for each in config.targets}
        asked = any(each["outcome"] == "built" for each in _on_demand(run, name))
        if narrowed and there:
            continue
        if own <= {*run["steps"]}:
            seen = (ran.checked | ran.missed) & own
            found.append(BuiltModel(config, steps, seen, ran.manifests))
        elif there and asked:
            found.append(current_model(config, steps, ran.manifests, workspace))
    return found


def current_model(
    config: ModelConfig, steps: Sequence[Step], manifests: Mapping[str, Manifest], workspace: Workspace
) -> BuiltModel:
    """A model as it is now, whatever the last run was about. Its page has to be written."""
    made = [step for step in steps if step.stage not in ON_DEMAND and step.id in manifests]
    return BuiltModel(config, steps, {step.id for step in made if _is_current(step, workspace)}, manifests, again=True)


def _is_current(step: Step, workspace: Workspace) -> bool:
    try:
        return is_current(step, workspace)
    except (PipelineError, OSError):
        return False


def _on_demand(run: RunRecord, model: str) -> Iterable[RunRecord]:
    for name, each in run["steps"].items():
        stage, _, rest = name.partition(":")
        if stage in ON_DEMAND and rest.split("/")[0] == model:
            yield each


def remove_page(model: str, workspace: Workspace) -> list[Path]:
    """Delete the page of a model, and the one over all, which the next build writes. Returns the deleted files.

    Raises StoreError if one can't be deleted.
    """
    removed = []
    for path in (_state(model, workspace), path_of(model, workspace), workspace.artifacts / PAGE):
        with disk_errors(path, "the report can't be removed"), contextlib.suppress(FileNotFoundError):
            path.unlink()
            removed.append(path)
    return [path for path in removed if path.name == PAGE]


def _is_news(run: RunRecord | None, model: BuiltModel) -> bool:
    """Whether a run made or restored a step of a model, or failed at one."""
    own = {step.id for step in model.steps}
    return run is not None and any(
        each["outcome"] != "current" and name.partition(":")[0] not in ON_DEMAND
        for name, each in run["steps"].items()
        if name in own
    )


def _write_model(model: BuiltModel, kept: _Kept, run: RunRecord | None, path: Path, workspace: Workspace) -> None:
    from pipeline.report.page import compose
    from pipeline.report.page.source import PageSource

    name = model.config.name
    artifacts = dict(artifacts_of(model))
    before = kept.before
    another = run is not None and bool(kept.run) and kept.run["started"] != run["started"]
    if kept.artifacts and kept.run and (kept.artifacts != artifacts or (another and not before)):
        before = {"started": kept.run["started"], "artifacts": kept.artifacts}
    asked = [step for step in model.steps if step.stage in ON_DEMAND and step.id in model.manifests]
    seen = {*model.seen, *(step.id for step in asked if _is_current(step, workspace))}
    source = PageSource(model.config, model.steps, seen, model.manifests, workspace, artifacts, run)
    if run is not None and before:
        source = replace(source, since=(before["started"], _compared(before, artifacts, run, workspace)))
    data = compose.model_page(source)
    path.parent.mkdir(parents=True, exist_ok=True)
    _put(path, data, workspace)
    own = {step.id for step in model.steps}
    shown = _of_model(run, own) if run is not None else {}
    _keep(name, _Kept(model.digest, compose.facts(source).to_json(), shown, artifacts, before), workspace)


def _of_model(run: RunRecord, own: Collection[str]) -> dict[str, Any]:
    """The record of a run, reduced to one model."""
    kept = {name: value for name, value in run.items() if name not in ("steps", "failures", "artifacts")}
    steps = {name: each for name, each in run["steps"].items() if name in own}
    return {**kept, "steps": steps, "failures": [each for each in run["failures"] if {*own} & {*each["tasks"]}]}


def artifacts_of(model: BuiltModel) -> Iterable[tuple[str, Any]]:
    """The artifacts of a model as run.json has them, by their names."""
    from pipeline.report.run_artifacts import artifacts

    return artifacts(model.steps, model.seen, model.manifests)


def _compared(before: Mapping[str, Any], artifacts: Mapping[str, Any], run: RunRecord, workspace: Workspace) -> Any:
    from pipeline.report.comparison import compare

    now = {"artifacts": artifacts, "steps": run["steps"], "whole": True}
    return compare({"artifacts": before["artifacts"]}, now, workspace.project.settings.compare)


def _write_index(path: Path, run: RunRecord | None, known: Collection[str], workspace: Workspace) -> list[Path]:
    from pipeline.report.page import compose

    found = []
    for summary in _summaries(known, workspace):
        with contextlib.suppress(ContractError):
            found.append(compose.PageFacts.from_json(summary))
    _put(path, compose.index_page(found, run), workspace)
    return [path]


def _summaries(known: Collection[str], workspace: Workspace) -> list[Mapping[str, Json]]:
    kept = [_read(name, workspace) for name in sorted(known) if path_of(name, workspace).is_file()]
    return [each.page for each in kept if each.page]


def _put(path: Path, data: bytes, workspace: Workspace) -> None:
    with workspace.scratch.folder() as folder:
        write_atomically(path, data, durable=False, folder=folder)


def _state(model: str, workspace: Workspace) -> Path:
    return workspace.build / _PAGES / f"{model}.json"


def _keep(model: str, kept: _Kept, workspace: Workspace) -> None:
    path = _state(model, workspace)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {name: getattr(kept, name) for name in ("digest", "page", "run", "artifacts", "before")}
    _put(path, json.dumps(content, allow_nan=False).encode(), workspace)


def _read(model: str, workspace: Workspace) -> _Kept:
    """What is kept of a model's page; nothing if that is lost or damaged."""
    try:
        with _state(model, workspace).open("rb") as stream:
            content = json.loads(stream.read(_MOST_BYTES))
        shapes = {"digest": str, "page": dict, "run": dict, "artifacts": dict, "before": dict}
        if {*content} == {*shapes} and all(isinstance(content[name], kind) for name, kind in shapes.items()):
            return _Kept(**content)
    except (OSError, ValueError, TypeError, RecursionError):
        pass
    return _Kept()
