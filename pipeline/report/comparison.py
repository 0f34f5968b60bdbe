"""Artifacts of two runs, figure by figure: what is worse than the limits allow, and what else is not as it was."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from pipeline.model import Json
from pipeline.plain_text import printable
from pipeline.project_file import CompareSettings
from pipeline.report import human_bytes
from pipeline.thresholds import RUNGS

_TOTAL = "total"
_ROUNDING = 1e-9  # of figures that differ by just the limit
COLUMNS = ("", "artifact", "figure", "last", "now", "limit")

Record = Mapping[str, Any]
"""The content of a run.json."""


class Verdict(Enum):
    """What a row of the comparison says."""

    MISSED = "MISSED"
    CHANGED = "changed"
    NEW = "new"
    WAITING = "waiting"


@dataclass(frozen=True)
class Row:
    """A figure that is not what it was, as it was and is, and by how much it may be worse; None for no number."""

    verdict: Verdict
    artifact: str
    figure: str
    last: float | str | None
    now: float | str | None
    limit: float | None = None
    unit: str = ""

    def cells(self) -> tuple[str, ...]:
        """The row as text, by :data:`COLUMNS`."""
        limit = "" if self.limit is None else f"{self.limit:g} {self.unit}"
        shown = (self._shown(self.last), self._shown(self.now))
        if shown[0] == shown[1] and isinstance(self.last, float | int) and self.figure == "size":
            shown = (f"{self.last} B", f"{self.now} B")
        return (self.verdict.value, printable(self.artifact, ""), printable(self.figure, ""), *shown, limit)

    def as_json(self) -> dict[str, Json]:
        """The row as JSON."""
        return {
            "verdict": self.verdict.value.lower(),
            "artifact": self.artifact,
            "figure": self.figure,
            "last": self.last,
            "now": self.now,
            "limit": self.limit,
            "unit": self.unit,
        }

    def _shown(self, value: float | str | None) -> str:
        if isinstance(value, str):
            return printable(value, "")
        if value is None:
            return "no number"
        if self.figure == "size":
            return human_bytes(int(value))
        return f"{value:.2f} dB" if self.unit == "dB" else f"{value:g}"


@dataclass
class Comparison:
    """Every figure that changed, and how many did not; `left_out` counts artifacts that the run was not about."""

    rows: list[Row] = field(default_factory=list)
    same: int = 0
    artifacts: int = 0
    left_out: int = 0

    @property
    def missed(self) -> list[Row]:
        """What is worse than the limits allow."""
        return [row for row in self.rows if row.verdict is Verdict.MISSED]

    def summary(self) -> str:
        """In a line, how it came out."""
        verdicts = [row.verdict for row in self.rows]
        parts = [f"{self.artifacts} artifact(s) compared", f"{self.same} figure(s) as they were"]
        told = {Verdict.CHANGED: "changed within the limits", Verdict.NEW: "new", Verdict.WAITING: "waiting"}
        parts += [f"{verdicts.count(verdict)} {text}" for verdict, text in told.items() if verdict in verdicts]
        if self.left_out:
            parts.append(f"{self.left_out} not compared, as this run was not about them")
        parts.append(f"{len(self.missed)} MISSED" if self.missed else "none missed")
        return ", ".join(parts)


def compare(last: Record, now: Record, limits: CompareSettings) -> Comparison:
    """The artifacts of two runs, figure by figure. What `now` was not about, or what waits for a host, is no miss."""
    found = Comparison()
    waiting = {name for name, step in now["steps"].items() if step["outcome"] == "waiting"}
    waiting |= {name for name, step in now["steps"].items() if step.get("because") in waiting}
    before, after = last["artifacts"], now["artifacts"]
    for name in before:
        if name in after:
            found.artifacts += 1
            _figures(name, before[name], after[name], now, waiting, limits, found)
        elif before[name]["steps"]["context"] in waiting:
            found.rows.append(Row(Verdict.WAITING, name, "artifact", "there", "waiting for its host"))
        elif now["whole"] or before[name]["steps"]["context"] in now["steps"]:
            found.rows.append(Row(Verdict.MISSED, name, "artifact", "there", "gone"))
        else:
            found.left_out += 1
    found.rows += [Row(Verdict.NEW, name, "artifact", "not there", "there") for name in after if name not in before]
    _sizes({name for name in before if name in after}, before, after, limits, found)
    found.rows.sort(key=lambda row: [*Verdict].index(row.verdict))
    return found


def _figures(
    name: str,
    last: Record,
    now: Record,
    run: Record,
    waiting: Collection[str],
    limits: CompareSettings,
    found: Comparison,
) -> None:
    """Accuracy, score, and what runs where."""
    rungs = {*last["sqnr_db"], *now["sqnr_db"]}
    if (RUNGS[-1] in last["sqnr_db"]) != (RUNGS[-1] in now["sqnr_db"]):
        rungs -= {_TOTAL}  # of one it is what the emulator gave, of the other it ends a rung before
    for rung in sorted(rungs, key=_order):
        by = "emulate" if rung == RUNGS[-1] else "verify"
        values = (last["sqnr_db"].get(rung, _ABSENT), now["sqnr_db"].get(rung, _ABSENT))
        _judge(name, f"{rung} SQNR", values, limits.snr_db, "dB", _state(by, now, run, waiting), found)
    scores = (_distance(last["score"]), _distance(now["score"]))
    title = next((str(each["name"]) for each in (now["score"], last["score"]) if each), "")
    # Not that of the emulated samples: of few, one may be a tenth of the score.
    figure = f"{title}'s distance to the original's"
    _judge(name, figure, scores, limits.score, "", _state("verify", now, run, waiting), found)
    for figure in ("cpu_nodes", "partitions", "scheme", "packing"):
        if last[figure] != now[figure]:
            found.rows.append(Row(Verdict.CHANGED, name, figure.replace("_", " "), last[figure], now[figure]))


class _Absent:
    """A figure that was not measured."""


_ABSENT = _Absent()
_Value = float | None | _Absent


def _judge(
    name: str, figure: str, values: tuple[_Value, _Value], limit: float, unit: str, state: str, found: Comparison
) -> None:
    """Add a row for a figure that is not what it was; less is worse in dB, more in all else."""
    last, now = values
    if isinstance(now, _Absent):
        if isinstance(last, _Absent) or state == "not asked for":
            return
        verdict = Verdict.WAITING if state else Verdict.MISSED
        found.rows.append(Row(verdict, name, figure, last, state or "not measured", limit, unit))
    elif isinstance(last, _Absent):
        found.rows.append(Row(Verdict.NEW, name, figure, "not measured", now, limit, unit))
    elif last == now:
        found.same += 1
    elif last is None or now is None:
        found.rows.append(Row(Verdict.MISSED if now is None else Verdict.CHANGED, name, figure, last, now, limit, unit))
    else:
        worse = last - now if unit == "dB" else now - last
        verdict = Verdict.MISSED if worse > limit + _ROUNDING else Verdict.CHANGED
        found.rows.append(Row(verdict, name, figure, last, now, limit, unit))


def _state(stage: str, artifact: Record, run: Record, waiting: Collection[str]) -> str:
    """Why an artifact may lack what a stage measures: nothing, or that its step waits, or was not asked for."""
    step = artifact["steps"].get(stage)
    if step in waiting:
        return "waiting for its host"
    return "not asked for" if not run["whole"] and step not in run["steps"] else ""


def _distance(score: Record | None) -> _Value:
    """How far a score is from that of the original model on the same samples: whether more is better, nobody knows."""
    if score is None:
        return _ABSENT
    made, original = score["made"], score["original"]
    return None if made is None or original is None else float(format(abs(made - original), ".6g"))


def _sizes(
    names: Collection[str],
    before: Mapping[str, Record],
    after: Mapping[str, Record],
    limits: CompareSettings,
    found: Comparison,
) -> None:
    """Each binary against what it was; where another form was chosen, all of the component's together."""
    last, now = _binaries(names, before), _binaries(names, after)
    held = (_binaries(before.keys(), before), _binaries(after.keys(), after))
    for step in (step for step in last if step in now):
        if held[0][step].keys() == held[1][step].keys():
            title = next(iter(last[step])) if len(last[step]) == 1 else step.partition(":")[2]
            _size(title, _bytes(last[step], before), _bytes(now[step], after), limits, found)
        else:
            sizes = (_bytes(last[step], before), _bytes(now[step], after))
            if sizes[0] == sizes[1]:
                found.same += 1
            else:  # it holds others as well
                found.rows.append(Row(Verdict.CHANGED, step.partition(":")[2], "size", *sizes))
    for component in sorted({_component(name) for step in last.keys() - now.keys() for name in last[step]}):
        own = {name for name in names if _component(name) == component}
        whole = [sum(_bytes(each, run) for each in _binaries(own, run).values()) for run in (before, after)]
        _size(f"{component}, all of it", whole[0], whole[1], limits, found)


def _size(name: str, last: int, now: int, limits: CompareSettings, found: Comparison) -> None:
    if last == now:
        found.same += 1
        return
    verdict = Verdict.MISSED if now > last * (1 + limits.size_percent / 100) else Verdict.CHANGED
    found.rows.append(Row(verdict, name, "size", last, now, limits.size_percent, "%"))


def _binaries(names: Collection[str], artifacts: Mapping[str, Record]) -> dict[str, dict[str, None]]:
    """The artifacts by the context step that made them: those of one step share its files."""
    found: dict[str, dict[str, None]] = {}
    for name in artifacts:
        if name in names:
            found.setdefault(artifacts[name]["steps"]["context"], {})[name] = None
    return found


def _bytes(names: Mapping[str, None], artifacts: Mapping[str, Record]) -> int:
    """Of all files of some artifacts, each counted once."""
    files = {file: entry["bytes"] for name in names for file, entry in artifacts[name]["files"].items()}
    return sum(files.values())


def _component(name: str) -> str:
    return "/".join(name.split("/")[:2])


def _order(rung: str) -> tuple[int, str]:
    rungs = (*RUNGS, _TOTAL)
    return (rungs.index(rung) if rung in rungs else len(rungs), rung)
