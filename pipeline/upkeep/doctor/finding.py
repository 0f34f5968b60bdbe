"""The findings of checks. Needs only the standard library, even that of an older Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pipeline.frozen import dataclass

Level = Literal["ok", "warning", "error", "not checked"]

CONFIG, SOURCE, COMPILER, VERIFICATION, STORE, ENVIRONMENT = 10, 11, 15, 16, 17, 18
"""Exit codes, as in docs/troubleshooting.md. An environment that can't run workers has the code of a dead worker."""


@dataclass(frozen=True)
class Finding:
    """One thing that the doctor looked at.

    `check` is the stable name of the check; `subject` says which model, folder or package it looked at.
    """

    check: str
    level: Level
    what: str
    subject: str = ""
    why: str = ""
    remedy: str = ""
    exit_code: int = 0

    @property
    def group(self) -> str:
        """The part of `check` before the dot. The report shows findings of one group together."""
        return self.check.split(".")[0]


@dataclass(frozen=True)
class Check:
    """Makes the findings of one check; a build would end with `exit_code` after one of its errors."""

    name: str
    exit_code: int = ENVIRONMENT
    subject: str = ""

    def about(self, subject: str, exit_code: int | None = None) -> Check:
        """This check for another subject, whose errors may have another exit code."""
        return replace(self, subject=subject, exit_code=exit_code or self.exit_code)

    def ok(self, what: str, why: str = "") -> Finding:
        """The finding that all is well."""
        return Finding(self.name, "ok", what, self.subject, why)

    def warning(self, what: str, why: str = "", remedy: str = "") -> Finding:
        """The finding that a build may fail, or may be worse than it could be."""
        return Finding(self.name, "warning", what, self.subject, why, remedy)

    def error(self, what: str, why: str = "", remedy: str = "") -> Finding:
        """The finding that a build will fail, or will make artifacts that do not work."""
        return Finding(self.name, "error", what, self.subject, why, remedy, self.exit_code)

    def unchecked(self, what: str, why: str, remedy: str = "") -> Finding:
        """The finding that the check could not be made; `why` is the reason."""
        return Finding(self.name, "not checked", what, self.subject, why, remedy)


def exit_code(findings: Sequence[Finding]) -> int:
    """0, or the exit code of the first error."""
    return next((found.exit_code for found in findings if found.level == "error"), 0)
