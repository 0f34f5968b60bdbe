"""What was measured, as it is kept in docs/performance.json, and the statistics of it."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.measure import Span, Usage


@dataclass(frozen=True)
class Run:
    """One measured run of a tool, or why there is none.

    `numbers` holds what else was counted: bytes shipped and kept (`shipped_bytes`, `kept_bytes`), steps. `texts` holds
    what is no number, such as which steps ran.
    """

    model: str
    case: str
    tool: str
    repeat: int
    usage: Usage | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
    texts: Mapping[str, list[str]] = field(default_factory=dict)
    failure: str = ""

    @property
    def series(self) -> tuple[str, str, str]:
        """What its repeats have in common."""
        return self.model, self.case, self.tool

    @property
    def id(self) -> str:
        """What the run is called while the benchmark runs."""
        return f"{self.model}/{self.case}/{self.tool}/{self.repeat}"


Figure = Callable[[Run], float | None]
"""A number of a run; None if it has none."""


def wall_s(run: Run) -> float | None:
    """Seconds from start to end."""
    return run.usage.wall_s if run.usage else None


def cpu_s(run: Run) -> float | None:
    """Seconds of all cores, user and system."""
    return run.usage.cpu_s if run.usage else None


def process_bytes(run: Run) -> float | None:
    """Peak memory of any one process."""
    return run.usage.peak_process_bytes if run.usage else None


def tree_bytes(run: Run) -> float | None:
    """Peak memory of all processes at one moment."""
    return run.usage.peak_tree_bytes if run.usage else None


def number(name: str) -> Figure:
    """One of the run's other numbers."""
    return lambda run: run.numbers.get(name)


@dataclass
class Results:
    """All runs of one benchmark, and what they ran on."""

    about: dict[str, Any]
    runs: list[Run] = field(default_factory=list)

    def of(self, model: str, case: str, tool: str) -> list[Run]:
        """The runs of a tool that worked, in order."""
        return [run for run in self.runs if run.series == (model, case, tool) and not run.failure]

    def median(self, model: str, case: str, tool: str, figure: Figure) -> float | None:
        """The median of a figure over the repeats; None if it was not measured."""
        found = [value for run in self.of(model, case, tool) if (value := figure(run)) is not None]
        return statistics.median(found) if found else None

    def ratio(self, model: str, case: str, above: str, below: str, figure: Figure) -> float | None:
        """The median over the repeats of one tool's figure divided by another's in the same turn.

        What made the machine slow in one turn made it slow for both, so this varies less than a ratio of medians.
        """
        others = {run.repeat: figure(run) for run in self.of(model, case, below)}
        pairs = [(figure(run), others.get(run.repeat)) for run in self.of(model, case, above)]
        found = [high / low for high, low in pairs if high is not None and low]
        return statistics.median(found) if found else None

    def failures(self) -> list[Run]:
        """Runs that did not work, once each whatever the repeat."""
        return list({run.series: run for run in self.runs if run.failure}.values())

    def add(self, run: Run) -> None:
        """Take in a run; the first of its repeats takes the place of all that were there before."""
        kept = [other for other in self.runs if run.repeat or other.series != run.series]
        self.runs = [*kept, run]


def save(results: Results, path: Path) -> None:
    """Write as JSON, one run a line, so that a diff shows which moved."""
    path.parent.mkdir(parents=True, exist_ok=True)
    about = json.dumps(results.about, indent=1, ensure_ascii=False)
    runs = ",\n".join(json.dumps(dataclasses.asdict(run), ensure_ascii=False) for run in results.runs)
    path.write_text(f'{{"about": {about},\n"runs": [\n{runs}\n]}}\n', "utf-8")


def load(path: Path) -> Results:
    """What :func:`save` wrote."""
    raw = json.loads(path.read_text("utf-8"))
    return Results(raw["about"], [_run(each) for each in raw["runs"]])


def _run(raw: dict[str, Any]) -> Run:
    usage = raw.pop("usage")
    if usage is not None:
        usage = Usage(**{**usage, "spans": tuple(Span(**span) for span in usage["spans"])})
    return Run(**raw, usage=usage)
