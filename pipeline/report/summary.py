"""The end of a build's report: tables of what there is now, and a line that says what was done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import field
from functools import cached_property
from typing import Any, cast

from pipeline.config.host_names import Host
from pipeline.errors import PipelineError, WaitingError
from pipeline.frozen import dataclass
from pipeline.ladder import EXACT_DB
from pipeline.model import Manifest
from pipeline.plan.steps import Step
from pipeline.report.account import Account, account_of
from pipeline.report.remark_lines import listed, remark_lines
from pipeline.report.tables import MENDED, as_text

_NAMES = 8  # in a line of the console; the rest is counted
_ROWS = 60
"""The most rows of a table. Rows of models in which something was done come first."""
_MODELS = 40
"""The most models that are listed by name; more are only counted."""
_REASON_CHARS = 200


@dataclass(frozen=True)
class BuildFailure:
    """One error: its text, itself if it is one of ours, and the tasks that met it."""

    text: str
    error: PipelineError | None = None
    tasks: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """The exit code of a process that fails for this reason."""
        return self.error.exit_code if self.error else 1

    @property
    def reason(self) -> str:
        """One line: what the message begins with, and why."""
        what, *rest = self.text.splitlines()
        why = next((line.split(": ", 1)[1].split("; ")[0] for line in rest if line.startswith("  why: ")), "")
        line = f"{what}: {why}" if why else what
        return line if len(line) <= _REASON_CHARS else f"{line[: _REASON_CHARS - 1]}…"


@dataclass(frozen=True)
class Ran:
    """What one command did.

    `checked` are tasks that ended well, `missed` steps whose output may not ship, `waiting` steps for other hosts.
    `needs` maps each task that was not tried to a task that it needs and that failed, waits or was not tried either.
    `partial` maps each model that was published in part to its components that failed. `began` says when workers
    started, in seconds since the command did. `runs` has, for each step, the start and duration of every run.
    `unchanged` has the accounts of models in which nothing changed since a build; their steps are not in `steps`.
    """

    selected: Sequence[str]
    steps: Mapping[str, Step] = field(default_factory=dict)
    on_request: Sequence[str] = ()
    checked: Set[str] = frozenset()
    missed: Set[str] = frozenset()
    waiting: Mapping[str, WaitingError] = field(default_factory=dict)
    results: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    manifests: Mapping[str, Manifest] = field(default_factory=dict)
    failures: Sequence[BuildFailure] = ()
    needs: Mapping[str, str] = field(default_factory=dict)
    partial: Mapping[str, Sequence[str]] = field(default_factory=dict)
    began: Mapping[str, float] = field(default_factory=dict)
    runs: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    unchanged: Mapping[str, Account] = field(default_factory=dict)

    @cached_property
    def planned(self) -> Mapping[str, Sequence[Step]]:
        """The steps of each model that was looked at."""
        found: dict[str, list[Step]] = {}
        for step in self.steps.values():
            found.setdefault(step.config.name, []).append(step)
        return found

    @cached_property
    def accounts(self) -> Mapping[str, Account]:
        """The account of each model, in the order of their configs."""
        seen = self.checked | self.missed
        made = {
            name: account_of(steps, self.checked, seen, self.manifests, self.results)
            for name, steps in self.planned.items()
        }
        found = {**self.unchanged, **made}
        return {name: found[name] for name in sorted(found, key="{}.yaml".format)}

    @property
    def current(self) -> list[Step]:
        """The steps that are up to date now."""
        return [step for step in self.steps.values() if step.id in self.checked]

    @property
    def outcomes(self) -> list[str]:
        """`built`, `restored` or `shared` for each step that was not current before."""
        return [outcome for name, (outcome, _) in self.results.items() if name in self.steps]


def told(ran: Ran) -> Iterator[str]:
    """The parts of what a build prints at its end, each with a blank line before it."""
    for text in (*tables(ran), last_lines(ran)):
        if text:
            yield f"\n{text}"


def tables(ran: Ran) -> Iterator[str]:
    """The tables that have rows, as text: contexts, forecasts, accuracy, outputs, scores.

    If whole models were asked for and there was nothing to do, only the forecasts of what HTP will compute wrongly.
    """
    touched = {ran.steps[name].config.name for name in (*ran.results, *ran.missed) if name in ran.steps}
    accounts = sorted(ran.accounts.items(), key=lambda each: each[0] not in touched)
    kinds = max((len(account.tables) for _, account in accounts), default=0)
    for kind in range(kinds):
        rows = [row for _, account in accounts for row in account.tables[kind][1:]]
        heading = next(account.tables[kind][0] for _, account in accounts)
        if _is_idle(ran):
            rows = [row for row in rows if heading[0] == "forecast" and row[-1] != MENDED]
        shown = rows if len(rows) <= _ROWS else rows[:_ROWS]
        if text := as_text([heading, *shown]):
            yield text if shown is rows else f"{text}\nand {len(rows) - _ROWS} more: artifacts/report.html has them"


def last_lines(ran: Ran) -> str:
    """What was built, where it is, and what was not measured; empty for a command that is not about steps."""
    steps, left_out = ran.current or ran.unchanged, [*_left_out(ran)]
    if not (steps or ran.failures or ran.waiting or "build" in ran.selected):
        return "\n".join(left_out)
    models = sorted(name.split(":")[1] for name in ran.checked if name.startswith("build:"))
    if ran.failures:
        built = ran.outcomes.count("built")
        restored = len(ran.outcomes) - built
        failed = sum(max(1, len(failure.tasks)) for failure in ran.failures)
        head = f"FAILED: {failed} step(s); {built} built, {restored} restored. What was built is kept."
        return "\n".join([head, *_what_failed(ran), *_what_waits(ran)])
    lines = [_done(ran)]
    if len(models) <= _MODELS:
        idle = _is_idle(ran)
        lines += [f"artifacts/{name}/" + (_in_short(ran.accounts[name]) if idle else "") for name in models]
    if len(models) > _MODELS:
        lines.append(f"artifacts/ has {len(models)} models")
    accounts = ran.accounts
    lines += remark_lines((account.remarks for account in accounts.values()), _NAMES)
    if unverified := [name for name in models if name not in accounts or not accounts[name].is_verified]:
        names = listed(unverified, _NAMES)
        lines.append(f"Not proven, as nothing is measured: {names}. See 'verification' in docs/config.md.")
    guessed = [accounts[name].guessed for name in models if name in accounts and accounts[name].guessed]
    lines += guessed[:_NAMES]
    if len(guessed) > _NAMES:
        lines.append(f"and {len(guessed) - _NAMES} more configs with guesses")
    return "\n".join([*lines, *left_out, *_what_waits(ran)])


def _is_idle(ran: Ran) -> bool:
    """Whether whole models were asked for and all were done before, with every gate kept."""
    asked = all(name.partition(":")[0] == "build" for name in ran.selected)
    return asked and not (ran.outcomes or ran.missed or ran.failures or ran.waiting or ran.partial)


def _in_short(account: Account) -> str:
    """The text behind a model's folder: how many artifacts it has, and what should not be overlooked."""
    made = [cast("dict[str, Any]", each) for each in account.artifacts.values()]
    if not made:
        return ""
    told = [f"{len(made)} artifacts" if len(made) > 1 else "1 artifact"]
    totals = [each["sqnr_db"].get("total") for each in made]
    known = [db for db in totals if db is not None]
    if known and len(known) == len(totals):
        told.append("exact" if min(known) >= EXACT_DB else f"{min(known):.1f} dB or more in total")
    else:
        told += [f"{len(known)} with {min(known):.1f} dB or more"] if known else []
        told.append(f"{len(totals) - len(known)} not measured in dB")
    if left := sum(each["cpu_nodes"] for each in made):
        told.append(f"{left} nodes on the CPU")
    return f"  {', '.join(told)}: report.html has the tables"


def _left_out(ran: Ran) -> Iterator[str]:
    """A line on the models that are built on request only, and how to name them."""
    models = {name: {step.stage for step in ran.planned.get(name, ())} for name in ran.on_request}
    tried = {*ran.checked, *ran.needs, *(task for failure in ran.failures for task in failure.tasks)}
    skipped = [name for name in models if "build" in ran.selected and f"build:{name}" not in ran.checked]
    if skipped:
        yield f"Not built, as only on request: {', '.join(f'doit build:{name}' for name in skipped)}"
    for stage in ran.selected:
        skipped = [name for name, stages in models.items() if stage in stages and not _any_of(tried, stage, name)]
        if skipped:
            yield f"Left out, as only on request: {', '.join(_by_name(stage, name, ran) for name in skipped)}"


def _by_name(stage: str, model: str, ran: Ran) -> str:
    """What to type for the steps of a stage for a model."""
    return f"doit {stage}:{model}" if f"{stage}:{model}" in ran.steps else f"doit '{stage}:{model}/*'"


def _any_of(tasks: Set[str], stage: str, model: str) -> bool:
    """Whether one of these is a step of a stage for a model."""
    return any(task == f"{stage}:{model}" or task.startswith(f"{stage}:{model}/") for task in tasks)


def _what_failed(ran: Ran) -> Iterator[str]:
    """What failed and why, what was not tried because of it, and what was built."""
    alone = len(ran.failures) == 1 and len(ran.failures[0].tasks) < 2  # it was printed in full, with its name
    for failure in () if alone else ran.failures:
        yield f"  {listed(failure.tasks, _NAMES)}: {failure.reason}"
    for name, names in _not_tried(ran).items():
        if name not in ran.waiting:
            yield f"Not tried, as {name} failed: {listed(names, _NAMES)}"
    stages = [
        name.split(":")[0] for name, (outcome, _) in ran.results.items() if outcome == "built" and name in ran.steps
    ]
    counted = [f"{stage} {stages.count(stage)}" for stage in dict.fromkeys(stages)]
    if counted:
        yield f"Built: {', '.join(counted)}"
    for name in sorted(ran.checked):
        if name.startswith("build:"):
            yield f"artifacts/{name.split(':')[1]}/"
    for name, missing in ran.partial.items():
        yield f"artifacts/{name}/ (without {listed(missing, _NAMES)})"


def _what_waits(ran: Ran) -> Iterator[str]:
    """Which steps wait for which hosts, what to type there, and which steps need them."""
    if not ran.waiting:
        return
    of_cluster = sum(error.of_cluster for error in ran.waiting.values())
    if of_cluster < len(ran.waiting):
        here = ", ".join(Host.here().names)
        yield f"WAITING: {len(ran.waiting) - of_cluster} step(s) that may not run on this host ({here})."
    if of_cluster:
        yield f"WAITING: {of_cluster} step(s) that no worker of the cluster may run."
    alike: dict[tuple[str, str], list[str]] = {}
    for name, error in ran.waiting.items():
        why = f"{error.why} ({error.where})" if error.where else error.why
        alike.setdefault((why, error.remedy), []).append(name)
    for (why, remedy), names in alike.items():
        yield f"  {listed(names, _NAMES)}\n    why: {why}\n    next: {remedy}"
    held = [name for waits, names in _not_tried(ran).items() if waits in ran.waiting for name in names]
    if held:
        yield f"  Not tried until then: {listed(held, _NAMES)}"


def _not_tried(ran: Ran) -> dict[str, list[str]]:
    """What was not tried, by what failed or waits."""
    causes: dict[str, list[str]] = {}
    for name in ran.needs:
        causes.setdefault(cause(name, ran.needs), []).append(name)
    return causes


def cause(name: str, needs: Mapping[str, str]) -> str:
    """The failed or waiting task because of which the task `name` was not tried; `name` itself if it was tried."""
    while name in needs:
        name = needs[name]
    return name


def _done(ran: Ran) -> str:
    """One line: how many steps were brought up to date, and how."""
    outcomes = ran.outcomes
    built, restored, shared = (outcomes.count(outcome) for outcome in ("built", "restored", "shared"))
    steps = len(ran.current) + sum(len(account.steps) for account in ran.unchanged.values())
    if not steps and not ran.waiting:
        return "No model is selected."
    if not outcomes and not ran.waiting:
        kinds = {name.partition(":")[0] for name in ran.results}
        written = "Artifacts were written again; " if "build" in kinds else ""
        if "package" in kinds:
            written = f"{'Artifacts and releases' if written else 'Releases'} were written; "
        if "publish" in ran.checked and not written:  # lines above say what of it was new
            return f"Nothing to build: all {steps} steps are current."
        return f"{written or 'Nothing to do: '}all {steps} steps are current."
    from_shared = f", {shared} from the shared store" if shared else ""
    current = steps - built - restored - shared
    return f"{built} built, {restored} restored from the store{from_shared}, {current} already current."
