"""The part of a page about how numbers are stored: what was chosen, and what was tried for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.etree.ElementTree import Element

from pipeline.config.load import Auto
from pipeline.contracts import climb, precision
from pipeline.contracts.codec import ContractError
from pipeline.ladder import RUNGS
from pipeline.plan.resolve import resolve
from pipeline.plan.steps import Step
from pipeline.report import report
from pipeline.report.page import charts
from pipeline.report.page.markup import Content, decimal, element, figure, note, section, table
from pipeline.report.page.source import PageSource
from pipeline.sizes import human_bytes

_CURVE = ("precision", ">weights", ">in 8 bits", ">cost", ">dB on the CPU", ">dB emulated", "")
_CLIMB = (">attempt", "precision", *(f">{rung}" for rung in (*RUNGS, "total")), ">weights", "what it missed")


def precisions(source: PageSource) -> Element | None:
    """How each component's numbers are stored, the curve of its search, and its climb after a missed threshold."""
    parts: list[Content] = []
    for component, declared in source.config.components.items():
        step = next((each for each in source.steps if each.stage == "quantize" and each.component == component), None)
        made = next((each for each in source.steps if each.component == component and each.stage == "context"), None)
        if made is None or (step is not None and step.id not in source.seen):
            continue
        told = f"{report.scheme(made, source.manifests)}"
        parts.append(note(element("b", component), f" is stored as {told}."))
        if isinstance(declared.quantization, Auto):
            parts += _searched(component, source)
        if step is not None:
            parts += _climbed(component, step, source)
    return section("Precision", "precision", *parts) if parts else None


def _searched(component: str, source: PageSource) -> Iterator[Content]:
    manifest = source.manifests.get(f"precision:{source.config.name}/{component}")
    if manifest is None:
        return
    facts = precision.Facts.from_json(manifest.facts)
    points = facts.curve
    cost = [point.cost for point in points]
    lines = [charts.Line("on the CPU", cost, [point.db_cpu for point in points])]
    if any(point.db_emulator is not None for point in points):
        lines.append(charts.Line("emulated", cost, [point.db_emulator for point in points]))
    asked = source.config.components[component].thresholds.total_db
    caption = (
        f"{component}: what a search tried, from cheap to dear. It chose {facts.scheme} after {facts.trials} trials."
    )
    if len(points) > 1:
        key = charts.key(lines, asked=asked is not None)
        yield figure(charts.scatter(lines, "cost, relative", "dB", asked), caption, key)
    rows = [
        (
            point.label, human_bytes(point.weight_bytes), f"{point.share_8bit:.0%}", f"{point.cost:.3g}",
            decimal(point.db_cpu), decimal(point.db_emulator), point.failure,
        )
        for point in points
    ]  # fmt: skip
    yield table([_CURVE, *rows], f"{component}: what the search tried")


def _climbed(component: str, step: Step, source: PageSource) -> Iterator[Content]:
    if step.climb is None:
        return
    resolved = resolve(step, source.workspace)
    manifest = source.workspace.store.get(resolved.climb_key) if resolved and resolved.climb_key else None
    if manifest is None:
        return
    try:
        attempts = climb.Facts.from_json(manifest.facts).attempts
    except ContractError:
        return
    yield note(f"{component} missed a threshold as it was written, so the build looked for another precision.")
    yield from tried(component, attempts)


def tried(component: str, attempts: Sequence[climb.Attempt]) -> Iterator[Element]:
    """The curve and the table of what a climb tried, both with the number of each attempt."""
    rungs = [rung for rung in (*RUNGS, "total") if any(rung in attempt.sqnr_db for attempt in attempts)]
    rows = [
        (
            str(number),
            attempt.label,
            *(_figure(attempt, rung) if rung in rungs else "" for rung in (*RUNGS, "total")),
            human_bytes(attempt.weight_bytes) if attempt.weight_bytes else "–",
            attempt.why or "✓ keeps to all",
        )
        for number, attempt in enumerate(attempts, 1)
    ]
    places = [*range(1, len(attempts) + 1)]
    lines = [
        charts.Line(rung, places, [each.sqnr_db.get(rung) for each in attempts]) for rung in rungs[-charts.COLOURS :]
    ]
    if len(attempts) > 1:
        caption, key = f"{component}: decibels of each attempt, in that order", charts.key(lines, asked=False)
        yield figure(charts.scatter(lines, "attempt", "dB"), caption, key if len(lines) > 1 else ())
    made = table([_CLIMB, *rows], f"{component}: what was tried")
    if made is not None:
        yield made


def _figure(attempt: climb.Attempt, rung: str) -> str:
    return decimal(attempt.sqnr_db[rung]) if rung in attempt.sqnr_db else "–"
