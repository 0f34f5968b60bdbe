"""What a release did, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .errors import spelled


@dataclass(frozen=True)
class SessionReport:
    """One component in one bucket.

    `provider` is "" until it is loaded. `padding` is the share of the computed elements that were padding, 0 to 1, by
    the lengths of axes over all runs. `fallback` is the reason if it runs on the CPU and should not.
    `repeated` counts the runs that were repeated on a new session, as the device was lost.
    """

    component: str
    axes: Mapping[str, int]
    provider: str
    model: str
    load_s: float
    runs: int
    padding: float
    fallback: str
    repeated: int = 0


@dataclass(frozen=True)
class InputReport:
    """An input of floats that had numbers beyond `seen`, all that the build saw: in how many runs, and from where to
    where its numbers went in these.
    """

    component: str
    name: str
    seen: tuple[float, float]
    runs: int
    range: tuple[float, float]


@dataclass(frozen=True)
class Report:
    """An open release. `digest` is the SHA-256 of release.json; `verified` are files whose hashes were found right.

    `why` is the reason for `device` and `target`; `split` is how many calls were run in pieces; `beyond` has the inputs
    that had numbers beyond all that the build saw.
    """

    model: str
    version: str
    digest: str
    folder: str
    device: str
    target: str | None
    why: str
    verified: tuple[str, ...]
    split: int
    sessions: tuple[SessionReport, ...]
    beyond: tuple[InputReport, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        on = self.device if self.target is None else f"{self.device}, target {self.target}"
        lines = [f"{self.model} {self.version} on {on}: {self.why}", f"  {self.folder}"]
        lines += [f"  {_line(session)}" for session in self.sessions]
        lines += [f"  {self.split} inputs were split"] if self.split else []
        lines += [
            f"  {each.component}, {each.name}: {each.runs} run(s) with numbers beyond {each.seen[0]:.6g} to"
            f" {each.seen[1]:.6g}, from {each.range[0]:.6g} to {each.range[1]:.6g}"
            for each in self.beyond
        ]
        return "\n".join(lines)


def _line(session: SessionReport) -> str:
    name = f"{session.component}, {spelled(session.axes)}"
    if not session.provider:
        return f"{name}: not loaded"
    ran = f"{session.runs} runs, {session.padding:.0%} padding" if session.runs else "not run"
    repeated = f", {session.repeated} repeated as the device was lost" if session.repeated else ""
    fallback = f"; {session.fallback}" if session.fallback else ""
    return f"{name}: {session.provider}, loaded in {session.load_s:.2f} s, {ran}{repeated}{fallback}"
