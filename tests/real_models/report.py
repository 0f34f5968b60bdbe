"""The table of outcomes: Markdown for readers, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from pipeline.contracts.limits import READING_DB
from tests.real_models.cases import CASES
from tests.real_models.run_case import TARGET, Outcome

_RUNGS = ("reading", "padding", "rewrite", "quantization", "compile", "total")
_HEAD = """\
<!-- Written by `python -m tests.real_models`; edit tests/real_models/report.py. -->
# Trained models of strangers

Models that others trained and published, built as a new user would: a config of axes, samples and targets, and nothing
else. *Right* is an artifact whose application, on inputs that calibration did not see, says the same with the context
on QNN's emulator as with the original on ONNX Runtime's CPU; *refused* is a build that failed and said why; *wrong* is
one that shipped and disagrees. The figures are the worst SQNR in dB over outputs and buckets; `reading` holds what was
read against the package's own file. Seconds are of two cores that other work shared, at a load of 1 to 6.

"""


def markdown(outcomes: Sequence[Outcome]) -> str:
    """The page."""
    tools = ", ".join(f"{name} {version(name)}" for name in ("onnxruntime", "onnxruntime-qnn", "onnx"))
    lines = [_HEAD + f"Run by `python -m tests.real_models` for {TARGET} with {tools}.", ""]
    counts = {result: sum(each.result == result for each in outcomes) for result in ("right", "refused", "wrong")}
    kinds = {each.kind for each in outcomes}
    right = kinds - {each.kind for each in outcomes if each.result != "right"}
    lines.append(
        f"{len(outcomes)} models: {', '.join(f'{count} {result}' for result, count in counts.items())}. "
        f"Of {len(kinds)} kinds all models are right in {len(right)}."
    )
    titles = [
        "model",
        "what it is, package",
        "result",
        "scheme",
        *_RUNGS,
        "end task",
        "build s",
        "task s",
        "date, commit",
    ]
    lines += ["", f"| {' | '.join(titles)} |", "|" + " --- |" * len(titles)]
    lines += [_row(each) for each in outcomes]
    failed = [each for each in outcomes if each.result != "right"]
    if failed:
        lines += ["", "## What the builds said that are not right"]
    for each in failed:
        lines += ["", f"### {each.name}: {each.result}", "", "```text", each.said, "```"]
    return "\n".join([*lines, ""])


def _row(each: Outcome) -> str:
    figures = [f"{each.rungs[rung]:.1f}" if rung in each.rungs else "" for rung in _RUNGS]
    if each.rungs.get("reading", READING_DB) < READING_DB:
        figures[0] += ", own rounding"  # it would not have shipped otherwise
    result = each.result if each.result == "right" else f"**{each.result}**"
    if each.status:
        result += f" ({each.status})"
    cells = [each.name, f"{each.kind}; {each.package}", result, each.scheme, *figures, each.task]
    cells += [f"{each.build_s:.0f}", f"{each.task_s:.0f}", f"{each.date}, {each.commit}"]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |".replace("\n", " ")


def write(outcome: Outcome, folder: Path) -> None:
    """Put an outcome into real-models.json and .md of the folder, in place of the last one of its case."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "real-models.json"
    known = [Outcome(**each) for each in json.loads(path.read_text("utf-8"))] if path.is_file() else []
    outcomes = {each.name: each for each in [*known, outcome]}
    ordered = [outcomes[case.name] for case in CASES if case.name in outcomes]
    path.write_text(json.dumps([asdict(each) for each in ordered], indent=2) + "\n", "utf-8")
    (folder / "real-models.md").write_text(markdown(ordered), "utf-8")
