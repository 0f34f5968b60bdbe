"""The end of a build's report: tables of what there is now, and in a line what was done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from pipeline import report
from pipeline.model import Manifest
from pipeline.plan import Step

_NAMES = 8  # in a line; the rest is counted


@dataclass(frozen=True)
class Failed:
    """Why steps failed, in a line: several may meet the same."""

    names: Sequence[str]
    reason: str


@dataclass(frozen=True)
class Ran:
    """What one command did: `checked` ended well, `missed` was made and may not ship.

    `needs` has, for each task that was not tried as one that it needs failed or was not tried, the latter's name.
    """

    steps: Mapping[str, Step]
    on_request: Sequence[str]
    selected: Sequence[str]
    checked: Set[str]
    missed: Set[str]
    results: Mapping[str, tuple[str, float]]
    manifests: Mapping[str, Manifest]
    failures: Sequence[Failed]
    needs: Mapping[str, str]
    kept_going: bool

    @property
    def current(self) -> list[Step]:
        """The steps that are up to date now."""
        return [step for step in self.steps.values() if step.id in self.checked]


def tables(ran: Ran) -> Iterator[str]:
    """Contexts, accuracy, scores; those that have rows."""
    seen = ran.checked | ran.missed
    for rows in (
        report.contexts(ran.current, ran.manifests, ran.results),
        report.accuracy(ran.steps.values(), seen, ran.manifests),
        report.scores(ran.steps.values(), seen, ran.manifests),
    ):
        if text := report.table(rows):
            yield text


def last_lines(ran: Ran) -> str:
    """What was built, where it is, and what is not proven; empty for a command that is not about steps."""
    steps, built_all = ran.current, "build" in ran.selected
    if not (steps or ran.failures or built_all):
        return ""
    outcomes = [outcome for name, (outcome, _) in ran.results.items() if name in ran.steps]
    built, restored = outcomes.count("built"), outcomes.count("restored")
    models = sorted(name.split(":")[1] for name in ran.checked if name.startswith("build:"))
    if ran.failures:
        head = f"FAILED: {len(ran.failures)} step(s); {built} built, {restored} restored. What was built is kept."
        return "\n".join([head, *_what_failed(ran)])
    published = any(name.startswith("build:") for name in ran.results)
    lines = [_done(len(steps), built, restored, published), *(f"artifacts/{name}/" for name in models)]
    if unmeasured := report.unmeasured(ran.steps.values(), ran.checked, ran.manifests):
        lines.append(f"Not proven, as no held-out sample fits: {', '.join(unmeasured)}. Add samples to 'verification'.")
    if unverified := report.unverified(ran.steps.values(), models):
        names = ", ".join(unverified)
        lines.append(f"Not proven, as nothing is measured: {names}. See 'verification' in docs/config.md.")
    skipped = [name for name in ran.on_request if built_all and f"build:{name}" not in ran.checked]
    if skipped:
        lines.append(f"Not built, as only on request: {', '.join(f'doit build:{name}' for name in skipped)}")
    return "\n".join(lines)


def _what_failed(ran: Ran) -> Iterator[str]:
    """What failed and why, what was not tried because of it, and what there is all the same."""
    if not ran.kept_going and len(ran.failures) == 1:
        return  # the message is right above
    for failed in ran.failures:
        yield f"  {_listed(failed.names)}: {failed.reason}"
    causes: dict[str, list[str]] = {}
    for name in ran.needs:
        cause = name
        while cause in ran.needs:
            cause = ran.needs[cause]
        causes.setdefault(cause, []).append(name)
    for cause, names in causes.items():
        yield f"Not tried, as {cause} failed: {_listed(names)}"
    stages = [name.split(":")[0] for name, (outcome, _) in ran.results.items() if outcome == "built"]
    counted = [f"{stage} {stages.count(stage)}" for stage in dict.fromkeys(stages) if stage != "build"]
    if counted:
        yield f"Built: {', '.join(counted)}"
    for name in sorted(ran.checked):
        if name.startswith("build:"):
            yield f"artifacts/{name.split(':')[1]}/"


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _NAMES
    return ", ".join(names[:_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def _done(steps: int, built: int, restored: int, published: bool) -> str:
    if not steps:
        return "No model is selected."
    if not built and not restored:
        all_current = f"all {steps} steps are current."
        return f"Artifacts were written again; {all_current}" if published else f"Nothing to do: {all_current}"
    return f"{built} built, {restored} restored from the store, {steps - built - restored} already current."
