"""Findings as text for a person and as JSON for a program."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pipeline.doctor.finding import Finding, exit_code

SCHEMA = 1
"""Of the JSON: raised when a field changes its meaning or goes. docs/doctor.schema.json describes it."""

_LEVELS = ("ok", "warning", "error", "not checked")
_MARGIN = 2 + max(map(len, _LEVELS)) + 2


def as_json(findings: Sequence[Finding]) -> str:
    """One JSON object."""
    report = {
        "schema": SCHEMA,
        "ok": exit_code(findings) == 0,
        "exit_code": exit_code(findings),
        "counts": _counts(findings),
        "findings": [
            {
                "check": found.check,
                "group": found.group,
                "level": found.level,
                "subject": found.subject,
                "what": found.what,
                "why": found.why,
                "remedy": found.remedy,
                "exit_code": found.exit_code,
            }
            for found in findings
        ],
    }
    return json.dumps(report, indent=1, ensure_ascii=True)


def as_text(findings: Sequence[Finding]) -> str:
    """A paragraph for each group, in the order of the findings, and a last line that counts."""
    lines = []
    group = ""
    for found in findings:
        if found.group != group:
            group = found.group
            lines.append(f"{group}:")
        subject = f"{found.subject}: " if found.subject else ""
        lines += _indented(f"  {found.level:<{_MARGIN - 2}}", subject + found.what)
        for label, text in (("why", found.why), ("next", found.remedy)):
            if text:
                lines += _indented(" " * _MARGIN + f"{label}: ", text)
    counts = _counts(findings)
    lines.append("\n" + ", ".join(f"{counts[level]} {level}" for level in _LEVELS))
    return "\n".join(lines)


def _counts(findings: Sequence[Finding]) -> dict[str, int]:
    return {level: sum(found.level == level for found in findings) for level in _LEVELS}


def _indented(head: str, text: str) -> list[str]:
    first, *more = text.splitlines() or [""]
    return [head + first, *(" " * len(head) + line.strip() for line in more)]
