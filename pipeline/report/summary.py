"""The end of a build's report: tables of what there is now, and in a line what was done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from pipeline import report
from pipeline.errors import WaitingError
from pipeline.host_names import Host
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
    """What one command did: `checked` ended well, `missed` was made and may not ship, `waiting` other hosts may run.

    `needs` has, for each task that was not tried as one that it needs failed or was not tried, the latter's name.
    """

    steps: Mapping[str, Step]
    on_request: Sequence[str]
    selected: Sequence[str]
    checked: Set[str]
    missed: Set[str]
    waiting: Mapping[str, WaitingError]
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
    if not (steps or ran.failures or ran.waiting or built_all):
        return ""
    done = _Done.of(ran)
    models = sorted(name.split(":")[1] for name in ran.checked if name.startswith("build:"))
    if ran.failures:
        head = f"FAILED: {len(ran.failures)} step(s); {done.built} built, {done.came} restored. What was built is kept."
        return "\n".join([head, *_what_failed(ran), *_what_waits(ran)])
    lines = [done.line(), *(f"artifacts/{name}/" for name in models)]
    if unmeasured := report.unmeasured(ran.steps.values(), ran.checked, ran.manifests):
        lines.append(f"Not proven, as no held-out sample fits: {', '.join(unmeasured)}. Add samples to 'verification'.")
    if unverified := report.unverified(ran.steps.values(), models):
        names = ", ".join(unverified)
        lines.append(f"Not proven, as nothing is measured: {names}. See 'verification' in docs/config.md.")
    skipped = [name for name in ran.on_request if built_all and f"build:{name}" not in ran.checked]
    if skipped:
        lines.append(f"Not built, as only on request: {', '.join(f'doit build:{name}' for name in skipped)}")
    return "\n".join([*lines, *_what_waits(ran)])


def _what_failed(ran: Ran) -> Iterator[str]:
    """What failed and why, what was not tried because of it, and what there is all the same."""
    if not ran.kept_going and len(ran.failures) == 1:
        return  # the message is right above
    for failed in ran.failures:
        yield f"  {_listed(failed.names)}: {failed.reason}"
    for cause, names in _not_tried(ran).items():
        if cause not in ran.waiting:
            yield f"Not tried, as {cause} failed: {_listed(names)}"
    stages = [
        name.split(":")[0] for name, (outcome, _) in ran.results.items() if outcome == "built" and name in ran.steps
    ]
    counted = [f"{stage} {stages.count(stage)}" for stage in dict.fromkeys(stages)]
    if counted:
        yield f"Built: {', '.join(counted)}"
    for name in sorted(ran.checked):
        if name.startswith("build:"):
            yield f"artifacts/{name.split(':')[1]}/"


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _NAMES
    return ", ".join(names[:_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def _what_waits(ran: Ran) -> Iterator[str]:
    """What waits for which hosts, what to type there, and what stands on it."""
    if not ran.waiting:
        return
    yield f"WAITING: {len(ran.waiting)} step(s) that may not run on this host ({', '.join(Host.here().names)})."
    alike: dict[tuple[str, str], list[str]] = {}
    for name, error in ran.waiting.items():
        why = f"{error.why} ({error.where})" if error.where else error.why
        alike.setdefault((why, error.remedy), []).append(name)
    for (why, remedy), names in alike.items():
        yield f"  {_listed(names)}\n    why: {why}\n    next: {remedy}"
    held = [name for cause, names in _not_tried(ran).items() if cause in ran.waiting for name in names]
    if held:
        yield f"  Not tried until then: {_listed(held)}"


def _not_tried(ran: Ran) -> dict[str, list[str]]:
    """What was not tried, by what failed or waits."""
    causes: dict[str, list[str]] = {}
    for name in ran.needs:
        cause = name
        while cause in ran.needs:
            cause = ran.needs[cause]
        causes.setdefault(cause, []).append(name)
    return causes


@dataclass(frozen=True)
class _Done:
    """How many steps were brought up to date, and how."""

    steps: int
    built: int
    restored: int
    shared: int
    waiting: bool
    written: str
    """What was written of what is current, with a blank behind; empty for nothing."""
    published: bool

    @classmethod
    def of(cls, ran: Ran) -> _Done:
        outcomes = [outcome for name, (outcome, _) in ran.results.items() if name in ran.steps]
        kinds = {name.partition(":")[0] for name in ran.results}
        written = "Artifacts were written again; " if "build" in kinds else ""
        if "package" in kinds:
            written = f"{'Artifacts and releases' if written else 'Releases'} were written; "
        built, restored, shared = (outcomes.count(outcome) for outcome in ("built", "restored", "shared"))
        return cls(len(ran.current), built, restored, shared, bool(ran.waiting), written, "publish" in ran.checked)

    @property
    def came(self) -> int:
        """Those that were made before, here or elsewhere."""
        return self.restored + self.shared

    def line(self) -> str:
        if not self.steps and not self.waiting:
            return "No model is selected."
        if not self.built and not self.came and not self.waiting:
            if self.published and not self.written:  # what of it was new, is said above
                return f"Nothing to build: all {self.steps} steps are current."
            return f"{self.written or 'Nothing to do: '}all {self.steps} steps are current."
        parts = [f"{self.built} built", f"{self.restored} restored from the store"]
        parts += [f"{self.shared} from the shared store"] if self.shared else []
        return f"{', '.join(parts)}, {self.steps - self.built - self.came} already current."
