"""The part of a page that says how accurate a model's contexts are, rung by rung."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.etree.ElementTree import Element

from pipeline.graph.accuracy.verdict import TOTAL, shortfalls
from pipeline.ladder import EXACT_DB, READING, RUNGS
from pipeline.report import report
from pipeline.report.page import charts
from pipeline.report.page.markup import Content, element, figure, note, section, table
from pipeline.report.page.source import Measurement, PageSource, measurements
from pipeline.report.remark_lines import remark_lines
from pipeline.report.remarks import remarks
from pipeline.report.run_report import decibels

_ROWS = ("bucket", "target", *(f">{rung}" for rung in (*RUNGS, TOTAL)), ">asked in total", ">cosine", "samples", "")
_MOST_LINES = charts.COLOURS
_EXPLAINED = {
    "reading": "the model that was read, against the source's own file",
    "padding": "fixed shape, padded to the bucket",
    "rewrite": "rewritten for the chip",
    "quantization": "numbers in 8 and 16 bits",
    "compile": "the compiled context, on the emulator",
    "total": "the last of these against the original",
}


def accuracy(source: PageSource) -> Element:
    """The ladder of each component: a chart for each target, and every figure."""
    found = [*measurements(source)]
    parts: list[Content] = []
    if not found:
        parts.append(note("Nothing was measured: no held-out sample fits, or verification is switched off."))
    else:
        told = element("dl", class_="terms")
        for rung, what in _EXPLAINED.items():
            told.append(element("div", element("dt", rung), element("dd", what)))
        parts += [
            note(
                "Each rung is held against the one above it, on samples that calibration did not see. "
                "More decibels are better: every 20 dB make the error ten times smaller. "
                f"From {EXACT_DB:g} dB on, outputs are called exact."
            ),
            told,
        ]
    if said := [*remark_lines([remarks(source.steps, source.seen, source.manifests)])]:
        parts.append(element("ul", *(element("li", line) for line in said), class_="remarks"))
    for component in dict.fromkeys(each.component for each in found):
        parts += _component(component, [each for each in found if each.component == component])
    judged = table(report.judged(source.steps, source.seen, source.manifests), "Outputs that are judged by themselves")
    scores = table(report.scores(source.steps, source.seen, source.manifests), "Scores on the same samples")
    return section("Accuracy", "accuracy", *parts, judged, scores)


def misses(found: Sequence[Measurement]) -> Iterator[str]:
    """What misses its thresholds, in words."""
    for each in found:
        for short in shortfalls(TOTAL, each.last, each.cpu.subjects, each.limits):
            yield f"{each.component}, bucket {each.bucket}, {each.target}: output {short.label!r} ({short.kind})"
        rungs = {**each.cpu.rungs, **each.emulator.rungs}
        if _own_rounding(each):
            rungs.pop(READING, None)
        for rung, measured in rungs.items():
            for short in shortfalls(rung, measured, each.cpu.subjects, each.limits):
                yield f"{each.component}, bucket {each.bucket}, {each.target}: {short.label!r} on the {rung} rung"


def _own_rounding(each: Measurement) -> bool:
    return each.cpu.reading is not None and each.cpu.reading.shown == "own rounding"


def _component(component: str, found: Sequence[Measurement]) -> Iterator[Content]:
    yield element("h3", component)
    rungs = [rung for rung in (*RUNGS, TOTAL) if any(rung in each.rungs for each in found)]
    drawn = element("div", class_="pair")
    for target in dict.fromkeys(each.target for each in found):
        own = [each for each in found if each.target == target]
        lines = [
            charts.Line(each.bucket, [*range(len(rungs))], [each.rungs.get(rung) for rung in rungs])
            for each in sorted(own, key=_total)[:_MOST_LINES]
        ]
        rest = len(own) - _MOST_LINES
        caption = f"{component} on {target}: decibels on each rung, a line for each bucket" + (
            f"; of {len(own)} buckets the {_MOST_LINES} with the fewest decibels" if rest > 0 else ""
        )
        if any(y is not None for line in lines for y in line.ys):
            asked = [own[0].asked(rung) for rung in rungs]
            key = charts.key(lines, asked=any(least is not None for least in asked))
            drawn.append(figure(charts.ladder(rungs, lines, asked, EXACT_DB), caption, key))
    if len(drawn):
        yield drawn
    rows = [_row(each) for each in found]
    yield table([_ROWS, *rows], f"SQNR of {component} in dB, by its worst output")


def _row(each: Measurement) -> tuple[str, ...]:
    rungs = each.rungs
    unmeasured = {READING: "not proven"} if each.cpu.reading is not None else {}
    cells = [_cell(each, rung) if rung in rungs else unmeasured.get(rung, "–") for rung in (*RUNGS, TOTAL)]
    cosine = report.least_cosine(each.last)
    samples = f"{report.on_cpu(each.cpu)}, " + (
        f"{each.emulator.samples} emulated" if each.emulator.samples else "none emulated"
    )
    verdict = "✗ misses" if any(misses([each])) else "✓ keeps"
    asked = f"{each.asked(TOTAL):g}"
    return (each.bucket, each.target, *cells, asked, "–" if cosine is None else f"{cosine:.5f}", samples, verdict)


def _cell(each: Measurement, rung: str) -> str:
    db = each.rungs[rung]
    if rung == READING and _own_rounding(each):
        return f"{decibels(db)}, own rounding"
    if db is None and any(figures.sqnr_db is not None for figures in each.last.values()):
        return "by error"
    return decibels(db)


def _total(each: Measurement) -> float:
    db = each.rungs.get(TOTAL)
    return -1000.0 if db is None else db
