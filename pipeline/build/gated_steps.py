"""Brings the steps of a project up to date, checks that their outputs may ship, and climbs where they may not.

Warns of buckets that no sample needs, as soon as the samples are read: their accuracy will not be shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from threading import Lock
from typing import TypeVar

from pipeline.build import failed
from pipeline.build.bring import ChangedError, Outcome, Shown, bring_up_to_date, is_current, needed
from pipeline.build.climb import Climber
from pipeline.build.crew import Crew
from pipeline.build.explain_miss import explain, judge
from pipeline.build.findings import may_fail
from pipeline.build.remedies import CURABLE
from pipeline.contracts import samples
from pipeline.errors import PipelineError, WaitingError
from pipeline.plan import named_files
from pipeline.plan.steps import Step, held_out_set
from pipeline.plan.workspace import Workspace
from pipeline.store.manifests import read_manifest
from pipeline.store.store import DamagedError

_T = TypeVar("_T")
_TRIES = 4


class GatedSteps:
    """The steps of a project and their results. Safe to use from several threads.

    `results` has, for each step that was not current, its outcome and for how many seconds its worker ran. `missed` are
    steps whose output may not ship, `waiting` those that wait for another host. `remade`: steps that were done before
    may have been made again since, with other outputs.
    """

    def __init__(self, steps: Mapping[str, Step], workspace: Workspace, crew: Crew, shown: Shown) -> None:
        """`shown` is the context that a step is brought up to date in."""
        self._steps = steps
        self._workspace = workspace
        self._crew = crew
        self._shown = shown
        self._climber = Climber(steps, workspace, crew, shown)
        self.results: dict[str, tuple[str, float]] = {}
        self.missed: set[str] = set()
        self.waiting: dict[str, WaitingError] = {}
        self.remade = False
        self._to_come: dict[str, list[Step]] = {}
        self._refused: dict[str, PipelineError | None] = {}
        self._looking = Lock()

    def expect(self, steps: Iterable[Step]) -> None:
        """Note which steps are to be brought up to date: what these are to read is looked at before the first runs."""
        for step in steps:
            self._to_come.setdefault(step.config.name, []).append(step)

    def is_current(self, step: Step) -> bool:
        """Whether a step has nothing to do, and its output may ship."""
        try:
            kept = is_current(step, self._workspace) and judge(step, self._workspace) is None
            return kept and not self._climber.wishes(step)
        except (PipelineError, OSError):
            return False  # bringing it up to date raises the same error where it can be reported

    def bring(self, step: Step, tries: int = _TRIES) -> None:
        """Bring a step up to date and check that its output may ship.

        If another build replaced an input of the step meanwhile, all inputs are brought up to date again. `tries` ends
        this, as two builds with different settings could replace each other's outputs for ever.
        """
        self._look_at_files(step)
        try:
            self.bring_ungated(step)
        except WaitingError:
            raise
        except ChangedError as error:
            climbed = self._climber.changed(step)
            if tries <= 1 or not (climbed or error.replaced):
                raise
            for each in () if climbed else needed(step, self._steps):
                self.bring_ungated(each)
            self.bring(step, tries - 1)
            return
        except PipelineError as error:
            if may_fail(step.stage, error) and self._climbed(step, "compile"):
                return
            raise failed.kept(step, error, self._steps, self._workspace, made=False) from error
        if miss := judge(step, self._workspace):
            if self._climbed(step, miss.rung):
                return
            self.missed.add(step.id)
            missed = explain(miss, step, self._steps, self._workspace, self._crew, self._shown)
            raise failed.kept(step, missed, self._steps, self._workspace, made=True)
        if self._climber.wishes(step):
            self._climbed(step, "total")

    def _look_at_files(self, step: Step) -> None:
        """Raise PipelineError where a file is wrong that a step of the model is to read, now or hours later."""
        model = step.config.name
        with self._looking:
            if model not in self._refused:
                self._refused[model] = None
                try:
                    named_files.check(step.config, self._to_come.get(model, ()), self._workspace)
                except PipelineError as error:
                    self._refused[model] = error
            refused = self._refused[model]
        if refused is not None:
            raise refused.but()

    def _climbed(self, step: Step, rung: str) -> bool:
        """Climb for a step that missed `rung`; whether the component now has a precision that keeps to its gates.

        An empty `rung` allows a climb, too: another step of the component may miss a rung at the same time.
        """
        if (rung and rung not in CURABLE) or not self._climber.may_climb(step):
            return False
        try:
            if not self._climber.climb(step):
                return False
        except WaitingError as error:
            self.waiting[error.step] = error
            raise
        except PipelineError as error:
            self.missed.add(step.id)
            raise failed.kept(step, error, self._steps, self._workspace, made=True) from error
        self.remade = True  # steps that were done before may be those of the first precision
        self.results[step.id] = (Outcome.BUILT.value, 0.0)
        return True

    def bring_ungated(self, step: Step) -> None:
        """Bring a step up to date, whatever its gates say."""
        try:
            with self._climber.beside(step), self._shown(step) as started:
                bring = partial(bring_up_to_date, step, self._workspace, self._crew, started)
                result = self.healed(bring, needed(step, self._steps))
        except WaitingError as error:
            self.waiting[error.step] = error
            raise
        if result.outcome is not Outcome.CURRENT:
            self.results[step.id] = (result.outcome.value, result.seconds)
            if told := unneeded_buckets(step, self._workspace):
                self._workspace.store.tell(told)

    def healed(self, act: Callable[[], _T], steps: Iterable[Step], bring: Callable[[Step], None] | None = None) -> _T:
        """The result of `act`. If a file of these steps is damaged, makes the steps again and calls it again."""
        try:
            return act()
        except DamagedError:
            self.remade = True
            for step in steps:
                before = self.results.get(step.id)
                (bring or self.bring)(step)
                if self.results.get(step.id) is not before:
                    self._workspace.store.tell(f"made again: {step.id}")
            return act()


def unneeded_buckets(step: Step, workspace: Workspace) -> str:
    """A warning about the buckets that no sample needs, for the step that reads a model's held-out samples; else "".

    A bucket that only samples of calibration need is found later, when it is measured.
    """
    if not step.config.verification.enabled or step.id != held_out_set(step):
        return ""
    manifest = read_manifest(workspace.current(step))
    facts = manifest.read(samples.Facts.from_json) if manifest is not None else None
    if facts is None or not facts.unneeded:
        return ""
    axes = {axis for bucket in step.config.buckets for axis in bucket.axes}
    told = []
    for component, names in facts.unneeded.items():
        lengths = facts.lengths.get(component, {})
        spans = [f"{axis} {low} to {high}" for axis, (low, high) in lengths.items() if axis in axes]
        own = ", ".join(f"{step.config.name}/{component}/{name}" for name in names)
        told.append(f"{own} (samples have {', '.join(spans)})")
    return (
        f"{step.id}: no sample needs {'; '.join(told)}: what inputs of that length give will not be shown."
        " Add such samples, or drop the bucket."
    )
