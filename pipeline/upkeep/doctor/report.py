"""Writes findings as text for a person, and as JSON for a program."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import get_args

from pipeline.upkeep.doctor.finding import Finding, Level, exit_code

SCHEMA = 1
"""The version of the JSON's form: raised when a field changes its meaning or goes. docs/doctor.schema.json has it."""

_LEVELS = get_args(Level)
_MARGIN = 2 + max(map(len, _LEVELS)) + 2


def as_json(findings: Sequence[Finding]) -> str:
    """The findings as one JSON object."""
    code = exit_code(findings)
    rows = [asdict(found) | {"group": found.group} for found in findings]
    report = {"schema": SCHEMA, "ok": not code, "exit_code": code, "counts": _counts(findings), "findings": rows}
    return json.dumps(report, indent=1)


def as_text(findings: Sequence[Finding]) -> str:
    """The findings as text: a paragraph for each group, in their order, and a last line with the counts."""
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
    counts = ", ".join(f"{count} {level}" for level, count in _counts(findings).items())
    return "\n".join([*lines, "", counts])


def _counts(findings: Sequence[Finding]) -> dict[str, int]:
    counted = Counter(found.level for found in findings)
    return {level: counted[level] for level in _LEVELS}


def _indented(head: str, text: str) -> list[str]:
    first, *more = text.splitlines() or [""]
    return [head + first, *(" " * len(head) + line.strip() for line in more)]
