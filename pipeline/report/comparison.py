"""Compares artifacts of two runs, figure by figure, and finds what is worse than the limits allow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum

from pipeline.config.project_file import CompareSettings
from pipeline.ladder import RUNGS
from pipeline.model import Json
from pipeline.plain_text import printable
from pipeline.report.run_report import RunRecord
from pipeline.sizes import human_bytes

_TOTAL = "total"
_ROUNDING = 1e-9  # of figures that differ by just the limit
_COSTS = {
    "macs": "multiply-accumulates",
    "weight_bytes": "bytes of weights",
    "activation_bytes": "bytes of activations",
    "spill_bytes": "bytes that spill",
    "dram_read_bytes": "bytes read from DRAM",
    "dram_write_bytes": "bytes written to DRAM",
}
_BYTES = frozenset({"size", *(title for name, title in _COSTS.items() if name.endswith("_bytes"))})
COLUMNS = ("", "artifact", "figure", ">last", ">now", ">limit")


class Verdict(Enum):
    """What a change means."""

    MISSED = "MISSED"
    CHANGED = "changed"
    NEW = "new"
    WAITING = "waiting"


@dataclass(frozen=True)
class Change:
    """A figure that changed: its two values, None for no number, and by how much it may be worse."""

    verdict: Verdict
    artifact: str
    figure: str
    last: float | str | None
    now: float | str | None
    limit: float | None = None
    unit: str = ""

    def cells(self) -> tuple[str, ...]:
        """The change as text, by :data:`COLUMNS`."""
        limit = "" if self.limit is None else f"{self.limit:g} {self.unit}"
        shown = (self._shown(self.last), self._shown(self.now))
        if shown[0] == shown[1] and isinstance(self.last, float | int) and self.figure in _BYTES:
            shown = (f"{self.last} B", f"{self.now} B")
        return (self.verdict.value, printable(self.artifact, ""), printable(self.figure, ""), *shown, limit)

    def as_json(self) -> dict[str, Json]:
        """The change as JSON."""
        return asdict(self) | {"verdict": self.verdict.value.lower()}

    def _shown(self, value: float | str | None) -> str:
        if isinstance(value, str):
            return printable(value, "")
        if value is None:
            return "no number"
        if self.figure in _BYTES:
            return human_bytes(int(value))
        return f"{value:.2f} dB" if self.unit == "dB" else f"{value:g}"


@dataclass
class Comparison:
    """Every figure that changed, how many did not, and how many artifacts the run was not about (`left_out`)."""

    changes: list[Change] = field(default_factory=list)
    same: int = 0
    artifacts: int = 0
    left_out: int = 0

    @property
    def missed(self) -> list[Change]:
        """What is worse than the limits allow."""
        return [change for change in self.changes if change.verdict is Verdict.MISSED]

    def summary(self) -> str:
        """One line: how many figures have which verdict."""
        verdicts = [change.verdict for change in self.changes]
        parts = [f"{self.artifacts} artifact(s) compared", f"{self.same} figure(s) as they were"]
        told = {Verdict.CHANGED: "changed within the limits", Verdict.NEW: "new", Verdict.WAITING: "waiting"}
        parts += [f"{verdicts.count(verdict)} {text}" for verdict, text in told.items() if verdict in verdicts]
        if self.left_out:
            parts.append(f"{self.left_out} not compared, as this run was not about them")
        parts.append(f"{len(self.missed)} MISSED" if self.missed else "none missed")
        return ", ".join(parts)


def compare(last: RunRecord, now: RunRecord, limits: CompareSettings) -> Comparison:
    """Compare the artifacts of two runs. An artifact that `now` was not about, or that waits for a host, is no miss."""
    comparing = _Comparing(last["artifacts"], now["artifacts"], now, limits)
    for name in last["artifacts"]:
        comparing.artifact(name)
    for name in now["artifacts"]:
        if name not in last["artifacts"]:
            comparing.add(Verdict.NEW, name, "artifact", "not there", "there")
    comparing.sizes()
    comparing.found.changes.sort(key=lambda change: [*Verdict].index(change.verdict))
    return comparing.found


class _Absent:
    """A figure that was not measured."""


_ABSENT = _Absent()
_Value = float | None | _Absent


class _Comparing:
    """Compares the artifacts `before` with those `after`, which the run `now` left."""

    def __init__(
        self,
        before: Mapping[str, RunRecord],
        after: Mapping[str, RunRecord],
        now: RunRecord,
        limits: CompareSettings,
    ) -> None:
        self._before, self._after, self._now, self._limits = before, after, now, limits
        waiting = {name for name, step in now["steps"].items() if step["outcome"] == "waiting"}
        self._waiting = waiting | {name for name, step in now["steps"].items() if step.get("because") in waiting}
        self.found = Comparison()

    def add(
        self,
        verdict: Verdict,
        artifact: str,
        figure: str,
        last: float | str | None,
        now: float | str | None,
        limit: float | None = None,
        unit: str = "",
    ) -> None:
        """Note a figure that changed."""
        self.found.changes.append(Change(verdict, artifact, figure, last, now, limit, unit))

    def artifact(self, name: str) -> None:
        """Compare an artifact of the last run."""
        last, context = self._before[name], self._before[name]["steps"]["context"]
        if name in self._after:
            self.found.artifacts += 1
            self._figures(name, last, self._after[name])
        elif context in self._waiting:
            self.add(Verdict.WAITING, name, "artifact", "there", "waiting for its host")
        elif self._now["whole"] or context in self._now["steps"]:
            self.add(Verdict.MISSED, name, "artifact", "there", "gone")
        else:
            self.found.left_out += 1

    def _figures(self, name: str, last: RunRecord, now: RunRecord) -> None:
        """Accuracy, score, and what runs where."""
        rungs = {*last["sqnr_db"], *now["sqnr_db"]}
        if (RUNGS[-1] in last["sqnr_db"]) != (RUNGS[-1] in now["sqnr_db"]):
            rungs -= {_TOTAL}  # one total includes what the emulator changed, the other does not
        for rung in sorted(rungs, key=_order):
            stage = "emulate" if rung == RUNGS[-1] else "verify"
            values = (last["sqnr_db"].get(rung, _ABSENT), now["sqnr_db"].get(rung, _ABSENT))
            self._judge(name, f"{rung} SQNR", values, self._limits.snr_db, "dB", self._why_absent(stage, now))
        title = next((str(each["name"]) for each in (now["score"], last["score"]) if each), "")
        # The score of the emulated samples is not compared: of so few, one may be a tenth of the score.
        figure = f"{title}'s distance to the original's"
        scores = (_distance(last["score"]), _distance(now["score"]))
        self._judge(name, figure, scores, self._limits.score, "", self._why_absent("verify", now))
        for figure, title in _COSTS.items():
            before, after = (run.get("cost", {}).get(figure) for run in (last, now))
            if before is not None and after is not None:  # a run of before there were costs has none
                self._grown(name, title, before, after, self._limits.cost_percent)
        for figure in ("cpu_nodes", "partitions", "scheme", "packing"):
            if last[figure] != now[figure]:
                self.add(Verdict.CHANGED, name, figure.replace("_", " "), last[figure], now[figure])

    def _judge(
        self, name: str, figure: str, values: tuple[_Value, _Value], limit: float, unit: str, why_absent: str
    ) -> None:
        """Note a figure if it changed. In dB less is worse; in other units more is worse."""
        last, now = values
        if isinstance(now, _Absent):
            if isinstance(last, _Absent) or why_absent == "not asked for":
                return
            verdict = Verdict.WAITING if why_absent else Verdict.MISSED
            self.add(verdict, name, figure, last, why_absent or "not measured", limit, unit)
        elif isinstance(last, _Absent):
            self.add(Verdict.NEW, name, figure, "not measured", now, limit, unit)
        elif last == now:
            self.found.same += 1
        elif last is None or now is None:
            self.add(Verdict.MISSED if now is None else Verdict.CHANGED, name, figure, last, now, limit, unit)
        else:
            worse = last - now if unit == "dB" else now - last
            verdict = Verdict.MISSED if worse > limit + _ROUNDING else Verdict.CHANGED
            self.add(verdict, name, figure, last, now, limit, unit)

    def _why_absent(self, stage: str, artifact: RunRecord) -> str:
        """Why an artifact may lack what a stage measures: its step waits or was not asked for; "" for no reason."""
        step = artifact["steps"].get(stage)
        if step in self._waiting:
            return "waiting for its host"
        return "not asked for" if not self._now["whole"] and step not in self._now["steps"] else ""

    def sizes(self) -> None:
        """Compare the size of each binary or, if another form was chosen, of all binaries of the component."""
        both = [name for name in self._before if name in self._after]
        last, now = _by_context(both, self._before), _by_context(both, self._after)
        held = (_by_context(self._before, self._before), _by_context(self._after, self._after))
        for step in (step for step in last if step in now):
            sizes = _bytes(last[step], self._before), _bytes(now[step], self._after)
            if {*held[0][step]} == {*held[1][step]}:
                self._size(last[step][0] if len(last[step]) == 1 else step.partition(":")[2], *sizes)
            elif sizes[0] == sizes[1]:
                self.found.same += 1
            else:  # it holds other artifacts, too
                self.add(Verdict.CHANGED, step.partition(":")[2], "size", *sizes)
        for component in sorted({_component(name) for step in last.keys() - now.keys() for name in last[step]}):
            own = [name for name in both if _component(name) == component]
            whole = [
                sum(_bytes(names, run) for names in _by_context(own, run).values())
                for run in (self._before, self._after)
            ]
            self._size(f"{component}, all of it", *whole)

    def _size(self, name: str, last: int, now: int) -> None:
        self._grown(name, "size", last, now, self._limits.size_percent)

    def _grown(self, name: str, figure: str, last: int, now: int, limit: float) -> None:
        """Note an amount if it changed; `limit` is in percent."""
        if last == now:
            self.found.same += 1
            return
        verdict = Verdict.MISSED if now > last * (1 + limit / 100) else Verdict.CHANGED
        self.add(verdict, name, figure, last, now, limit, "%")


def _distance(score: RunRecord | None) -> _Value:
    """How far a score is from the original model's on the same samples: the scale may run either way."""
    if score is None:
        return _ABSENT
    made, original = score["made"], score["original"]
    return None if made is None or original is None else float(format(abs(made - original), ".6g"))


def _by_context(names: Iterable[str], artifacts: Mapping[str, RunRecord]) -> dict[str, list[str]]:
    """The artifacts by the context step that made them: those of one step share its files."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(artifacts[name]["steps"]["context"], []).append(name)
    return found


def _bytes(names: Iterable[str], artifacts: Mapping[str, RunRecord]) -> int:
    """The bytes of all files of some artifacts, each file counted once."""
    return sum({file: entry["bytes"] for name in names for file, entry in artifacts[name]["files"].items()}.values())


def _component(name: str) -> str:
    return "/".join(name.split("/")[:2])


def _order(rung: str) -> tuple[int, str]:
    rungs = (*RUNGS, _TOTAL)
    return (rungs.index(rung) if rung in rungs else len(rungs), rung)
