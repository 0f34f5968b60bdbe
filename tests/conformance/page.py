"""Writes docs/htp-arithmetic.md from the outcomes of a sweep: a row for each finding, and what was tried and agreed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from importlib.metadata import version
from pathlib import Path

from pipeline.qnn.session import bundled_sdk
from tests.conformance.batches import X_ELITE
from tests.conformance.coarse import COARSE_BECAUSE
from tests.conformance.finding import Finding
from tests.conformance.findings import FINDINGS, explain
from tests.conformance.formats import FORMATS
from tests.conformance.judge import AGREES, COARSE, FORMAT, WRONG
from tests.conformance.sweep import NOT_MADE, ON_CPU, REFUSED, Outcome

PAGE = Path("docs/htp-arithmetic.md")

_INTRODUCTION = """\
# Where HTP computes otherwise than ONNX says

Written by `python -m tests.conformance`; don't edit it. Measured on {date} with onnxruntime-qnn {qnn} (QAIRT {sdk}) and
onnxruntime {ort}, on the emulator of {target}. Whether silicon does the same is not known here; an artifact must not
depend on it. Nothing in QNN warns about any of this.

Each case is a model of one operator, as it is, without the rewrites of the build: every edge of the number format (±0,
what rounds to it, subnormals, floors, the float16 limits, ties, saturation, narrow and wide encodings, quiet
channels), every axis, rank and layout, and the node tests of the `onnx` package {onnx}, losses in float16 alone.
Float16 is compared with onnxruntime on inputs rounded to float16, 16 and 8 bits with the QDQ model on onnxruntime's
CPU. Right is what the rounding of the format explains: 4 float16 steps, 8 steps of 16 bits, 1 of 8; of operators
behind each other, what such steps of the first one's result make of the last one's.

"""

_KINDS = {
    AGREES: "right",
    COARSE: "coarse",
    FORMAT: "beyond the format",
    WRONG: "wrong",
    ON_CPU: "left to the CPU",
    REFUSED: "not compiled",
    NOT_MADE: "not made",
}


def write(outcomes: Sequence[Outcome], left: Mapping[str, int], date: str, page: Path = PAGE) -> None:
    """Write the page. `left` has, for each source of cases, how many were not run."""
    text = _INTRODUCTION.format(
        date=date, qnn=version("onnxruntime-qnn"), sdk=bundled_sdk(), ort=version("onnxruntime"), target=X_ELITE,
        onnx=version("onnx"),
    )  # fmt: skip
    text += _stamps(outcomes)
    text += "## Summary\n\n" + _summary(outcomes, left)
    text += "\n## Findings\n\n" + _findings(outcomes)
    text += "\n## Not explained yet\n\n" + _unexplained(outcomes)
    text += "\n## Coarse\n\n" + _coarse(outcomes)
    text += "\n## Not on the NPU\n\n" + _absent(outcomes)
    page.write_text(text, "utf-8")


def _stamps(outcomes: Sequence[Outcome]) -> str:
    """What the outcomes say that they were made with."""
    unknown = sum(not outcome.versions for outcome in outcomes)
    text = "".join(
        f"{count} of {len(outcomes)} outcomes were made with {stamp}.\n"
        for stamp, count in sorted(Counter(outcome.versions for outcome in outcomes if outcome.versions).items())
    )
    if unknown:
        text += f"{unknown} of {len(outcomes)} outcomes don't say which versions they were made with.\n"
    return f"{text}\n" if text else ""


def _summary(outcomes: Sequence[Outcome], left: Mapping[str, int]) -> str:
    counts = {name: Counter(outcome.kind for outcome in outcomes if outcome.number_format == name) for name in FORMATS}
    text = _table(
        ["format", "cases", *_KINDS.values(), "wrong, but right after the rewrites"],
        [
            [name, counts[name].total(), *(counts[name][kind] for kind in _KINDS),
             sum(outcome.kind == WRONG and outcome.after in (AGREES, COARSE) for outcome in outcomes
                 if outcome.number_format == name)]
            for name in FORMATS
        ],
    )  # fmt: skip
    operators = {outcome.operator for outcome in outcomes}
    clean = operators - {outcome.operator for outcome in outcomes if outcome.kind not in (AGREES, FORMAT)}
    alone = {operator for operator in operators if "+" not in operator}
    text += f"\n{len(alone)} operators. Right in every case: {', '.join(sorted(clean & alone))}.\n"
    if joined := operators - alone:
        text += f"\n{len(joined)} of several, one behind the other; {len(clean & joined)} are right in every case.\n"
    text += (
        "\nCoarse is further off than rounding explains, and by less than 1/64 of the output's size (float16), 256 of\n"
    )
    text += "65535 steps, 3 of 255. Not made: the quantizer or onnxruntime's CPU doesn't take the case.\n"
    missing = [f"{count} of `{name}`" for name, count in left.items() if count]
    return text + (f"\nNot run, for want of time: {', '.join(missing)}.\n" if missing else "\nAll cases were run.\n")


def _findings(outcomes: Sequence[Outcome]) -> str:
    wrong: defaultdict[str, list[Outcome]] = defaultdict(list)
    tried: Counter[str] = Counter()
    for outcome in outcomes:
        finding = explain(outcome)
        if finding is not None:
            tried[finding.id] += 1
            if outcome.kind in (WRONG, FORMAT):
                wrong[finding.id].append(outcome)
    return _table(
        ["finding", "operator", "format", "where", "what comes out", "right", "cases", "done"],
        [_row(finding, wrong[finding.id], tried[finding.id]) for finding in FINDINGS],
    )


def _row(finding: Finding, wrong: Sequence[Outcome], tried: int) -> list[object]:
    operators = sorted({outcome.operator for outcome in wrong}) or finding.operators
    kind, _, name = finding.done.partition(" ")
    done = f"{kind} `{name}`" if kind in ("rewrite", "forecast", "option") else finding.done
    return [
        f"`{finding.id}`", ", ".join(operators), ", ".join(finding.formats), finding.condition, finding.comes_out,
        finding.right, f"{len(wrong)} of {tried}", done,
    ]  # fmt: skip


def _unexplained(outcomes: Sequence[Outcome]) -> str:
    groups: defaultdict[tuple[str, str, str], list[Outcome]] = defaultdict(list)
    tried: Counter[tuple[str, str, str]] = Counter()
    for outcome in outcomes:
        if explain(outcome) is None:
            place = outcome.operator, outcome.number_format, outcome.edge
            tried[place] += 1
            if outcome.kind == WRONG:
                groups[place].append(outcome)
    if not groups:
        return "Nothing.\n"
    text = "Wrong cases that no finding covers. They are open.\n\n"
    rows = []
    for place, members in sorted(groups.items()):
        shown = members[0]
        example = shown.examples[0] if shown.examples else ""
        after = Counter(member.after for member in members if member.rewrites)
        cured = after[AGREES] + after[COARSE]
        rows.append([*place, shown.variant, example, f"{len(members)} of {tried[place]}", cured or ""])
    return text + _table(["operator", "format", "edge", "such as", "in: out, right", "cases", "right rewritten"], rows)


def _coarse(outcomes: Sequence[Outcome]) -> str:
    groups: defaultdict[tuple[str, str], list[Outcome]] = defaultdict(list)
    tried = Counter((outcome.operator, outcome.number_format) for outcome in outcomes)
    for outcome in outcomes:
        if outcome.kind == COARSE:
            groups[outcome.operator, outcome.number_format].append(outcome)
    rows = []
    for (operator, number_format), members in sorted(groups.items()):
        edges = ", ".join(edge for edge, _ in Counter(member.edge for member in members).most_common(3))
        example = members[0].examples[0] if members[0].examples else ""
        cured = sum(member.after == AGREES for member in members if member.rewrites) or ""
        why = next((why for patterns, formats, why in COARSE_BECAUSE if number_format in formats
                    and any(fnmatchcase(operator, pattern) for pattern in patterns)), "")  # fmt: skip
        count = f"{len(members)} of {tried[operator, number_format]}"
        rows.append([operator, number_format, edges, example, count, cured, why])
    heads = ["operator", "format", "edges", "in: out, right", "cases", "right rewritten", "because of"]
    return _table(heads, rows)


def _absent(outcomes: Sequence[Outcome]) -> str:
    kinds: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        kinds[outcome.operator, outcome.number_format][outcome.kind] += 1
    rows: list[list[object]] = []
    for (operator, number_format), counts in sorted(kinds.items()):
        absent = counts[ON_CPU] + counts[REFUSED]
        if absent:
            rows.append([operator, number_format, counts[ON_CPU], counts[REFUSED], counts.total()])
    return _table(["operator", "format", "left to the CPU", "not compiled", "of"], rows)


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |\n" for line in lines)
