"""What a check came to. Needs the standard library alone, of an older Python too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "error", "not checked"]

CONFIG, SOURCE, COMPILER, STORE, ENVIRONMENT = 10, 11, 15, 17, 18
"""Exit codes of errors, as in README.md. An environment that can't run workers has the code of a worker's death."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: `check` is its stable name, `subject` which of several it is about."""

    check: str
    level: Level
    what: str
    subject: str = ""
    why: str = ""
    remedy: str = ""
    exit_code: int = 0

    @property
    def group(self) -> str:
        """The part of `check` before the dot, under which it is shown."""
        return self.check.split(".")[0]


def ok(check: str, what: str, subject: str = "", why: str = "") -> Finding:
    """All is well."""
    return Finding(check, "ok", what, subject, why)


def warning(check: str, what: str, subject: str = "", *, why: str = "", remedy: str = "") -> Finding:
    """A build may go wrong, or be worse than it could be."""
    return Finding(check, "warning", what, subject, why, remedy)


def error(check: str, what: str, exit_code: int, subject: str = "", *, why: str = "", remedy: str = "") -> Finding:
    """A build will fail, or give what doesn't work; `exit_code` is the one it would end with."""
    return Finding(check, "error", what, subject, why, remedy, exit_code)


def unchecked(check: str, what: str, subject: str = "", *, why: str = "", remedy: str = "") -> Finding:
    """Nothing is known, for the reason in `why`."""
    return Finding(check, "not checked", what, subject, why, remedy)


def exit_code(findings: Sequence[Finding]) -> int:
    """0, or the exit code of the first error."""
    return next((found.exit_code or ENVIRONMENT for found in findings if found.level == "error"), 0)
