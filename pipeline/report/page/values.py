"""The parts of a page about where errors arise: value by value, and what is forecast of the chip's arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.etree.ElementTree import Element

from pipeline.contracts import blame
from pipeline.contracts.blame import RowFacts
from pipeline.contracts.codec import ContractError
from pipeline.model import Json
from pipeline.plan.steps import Step
from pipeline.report import report
from pipeline.report.page import charts
from pipeline.report.page.markup import Content, code, decimal, element, figure, folded, note, section, table
from pipeline.report.page.source import PageSource, measurements

_POINTS = 300
"""The most points of a chart. Of more values it shows the worst of each piece of the graph."""
_WORST = (">dB", ">lost by its encoding", ">lost by the weights", "value", "operator", "encoding", "why")
_FIRST = ("rung", ">dB", "value", "operator", "why")


def values(source: PageSource) -> Element:
    """The error at every value along the graph, of the buckets that `blame` looked at."""
    parts: list[Content] = []
    for step in source.steps:
        manifest = source.manifests.get(step.id) if step.stage == "blame" and step.id in source.seen else None
        if manifest is None:
            continue
        try:
            facts = blame.Facts.from_json(manifest.facts)
        except ContractError:
            continue
        parts += _bucket(step, facts, source.json_of(step.id, "blame.json"))
    if not parts:
        found = next((step for step in source.steps if step.stage == "blame"), None)
        command = f"uv run doit {found.id}" if found else "uv run doit blame"
        parts.append(
            note("Not measured by a build that keeps to its thresholds. To see it here, run ", code(command), ".")
        )
    return section("Where errors arise", "values", *parts)


def _bucket(step: Step, facts: blame.Facts, raw: Json) -> Iterator[Content]:
    place = f"{step.component}, bucket {step.bucket.name if step.bucket else 'all'}"
    yield element("h3", place)
    rows = _in_order(raw, "quantization")
    if rows:
        line, own = (
            charts.Line(name, *_thinned(rows, own=own)) for name, own in (("so far", False), ("lost here", True))
        )
        caption = (
            f"{place}: decibels at each of {len(rows)} values, from the inputs to the outputs. "
            "“So far” has all errors up to a value, “lost here” what its own encoding costs."
        )
        drawn = charts.scatter([line, own], "values in the order of the graph", "dB")
        yield figure(drawn, caption, charts.key([line, own], asked=False))
    worst = [
        (
            decimal(row.sqnr_db), decimal(row.own_db), decimal(row.weights_db), row.value, row.op or "input",
            row.encoding.dtype if row.encoding else "float", f"{row.local.name}: {row.local.text}" if row.local else "",
        )
        for row in facts.worst
    ]  # fmt: skip
    worst_rows = table([_WORST, *worst], f"{place}: the values at which most is lost", codes=(3,))
    if worst_rows is not None:
        yield folded(f"The {len(worst)} values at which most is lost", worst_rows)
    first = [
        (
            rung,
            decimal(row.sqnr_db),
            row.value,
            row.op or "input",
            f"{row.reason.name}: {row.reason.text}" if row.reason else "",
        )
        for rung, found in facts.first_wrong.items()
        for row in found
    ]
    yield table([_FIRST, *first], f"{place}: the first values that are wrong", codes=(2,))


def _in_order(raw: Json, rung: str) -> list[RowFacts]:
    """The rows of a rung in the graph's order; none if the file is not as it should be."""
    if not isinstance(raw, dict):
        return []
    rungs, order = raw.get("rungs"), raw.get("order")
    rows = rungs.get(rung) if isinstance(rungs, dict) else None
    values = order.get(rung) if isinstance(order, dict) else None
    if not isinstance(rows, list) or not isinstance(values, list):
        return []
    try:
        found = {row.value: row for row in (RowFacts.from_json(each) for each in rows if isinstance(each, dict))}
    except ContractError:
        return []
    return [found[value] for value in values if isinstance(value, str) and value in found]


def _thinned(rows: Sequence[RowFacts], *, own: bool) -> tuple[list[float], list[float | None]]:
    """Places and decibels; of many values, the worst of each piece."""
    known = [(float(at), db) for at, row in enumerate(rows) if (db := row.own_db if own else row.sqnr_db) is not None]
    step = max(1, -(-len(known) // _POINTS))
    worst = [min(known[at : at + step], key=lambda point: point[1]) for at in range(0, len(known), step)]
    return [at for at, _ in worst], [db for _, db in worst]


def forecasts(source: PageSource) -> Element | None:
    """What the chip's arithmetic will do to the model."""
    if not any(True for _ in measurements(source)) and not source.artifacts:
        return None
    found = table(report.forecasts(source.steps, source.seen, source.manifests), "Forecasts", codes=(4,))
    told: Content = found
    if found is None:
        told = note("Nothing in this model meets a limit of the chip's arithmetic that is known.")
    return section("Forecasts", "forecasts", told)
