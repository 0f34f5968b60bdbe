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
    """

    component: str
    axes: Mapping[str, int]
    provider: str
    model: str
    load_s: float
    runs: int
    padding: float
    fallback: str


@dataclass(frozen=True)
class Report:
    """An open release. `digest` is the SHA-256 of release.json; `verified` are files whose hashes were found right.

    `why` is the reason for `device` and `target`; `split` is how many calls were run in pieces.
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

    def as_dict(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        on = self.device if self.target is None else f"{self.device}, target {self.target}"
        lines = [f"{self.model} {self.version} on {on}: {self.why}", f"  {self.folder}"]
        lines += [f"  {_line(session)}" for session in self.sessions]
        lines += [f"  {self.split} inputs were split"] if self.split else []
        return "\n".join(lines)


def _line(session: SessionReport) -> str:
    name = f"{session.component}, {spelled(session.axes)}"
    if not session.provider:
        return f"{name}: not loaded"
    ran = f"{session.runs} runs, {session.padding:.0%} padding" if session.runs else "not run"
    fallback = f"; {session.fallback}" if session.fallback else ""
    return f"{name}: {session.provider}, loaded in {session.load_s:.2f} s, {ran}{fallback}"
