"""The part of a page about what one run of a context takes: counted and read from the binary, never timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from xml.etree.ElementTree import Element

from pipeline.contracts import context
from pipeline.contracts.cost import CostFacts
from pipeline.qnn.peaks import bound
from pipeline.report.page import charts
from pipeline.report.page.markup import Content, figure, folded, note, section, table
from pipeline.report.page.source import PageSource
from pipeline.sizes import human_bytes

_COSTS = ("component", "bucket", "target", "formats", ">MACs", ">weights", ">activations", ">in and out")
_MEMORY = ("component", "bucket", "target", ">VTCM", ">spill", ">DRAM read", ">DRAM written")
_BOUNDS = ("component", "bucket", "target", ">to compute, at least", ">to move, at least", "from")
_OPERATORS = ("compiler's operator", ">count", "from ONNX")
_MOST_BARS = 24


def costs(source: PageSource) -> Element | None:
    """The cost of each context, what no run can be faster than, and what the compiler made of the operators."""
    found = [*_found(source)]
    if not found:
        return None
    rows = [
        (
            component, bucket, target, ", ".join(cost.macs) or "–", f"{cost.all_macs / 1e6:,.1f} M",
            human_bytes(cost.weight_bytes), human_bytes(cost.activation_bytes), human_bytes(cost.edge_bytes),
        )
        for component, bucket, target, cost in found
    ]  # fmt: skip
    memory = [
        (
            component, bucket, target, human_bytes(cost.vtcm_bytes),
            human_bytes(cost.spill_bytes) if cost.spill_bytes else "none",
            _told(cost.dram_read_bytes), _told(cost.dram_write_bytes),
        )
        for component, bucket, target, cost in found
    ]  # fmt: skip
    said = note(
        "Counted from the graph that was compiled, where a MAC is a multiply-accumulate. "
        "VTCM, the chip's fast memory, and what spills out of it into DRAM "
        "are what the binary says, reads and writes of DRAM what the compiler plans. "
        "None of it is a time: docs/cost.md says how to read it."
    )
    parts: list[Content] = [said, table([_COSTS, *rows], "What one run takes")]
    parts.append(table([_MEMORY, *memory], "Which memory one run uses"))
    parts += _bounds(found)
    parts += _operators(found)
    return section("Cost", "cost", *parts)


def _found(source: PageSource) -> Iterator[tuple[str, str, str, CostFacts]]:
    for step in source.steps:
        manifest = source.manifests.get(step.id) if step.stage == "context" and step.id in source.seen else None
        for part in context.Facts.from_json(manifest.facts).parts.values() if manifest else ():
            for target in step.targets:
                yield step.component or "", part.facts.bucket, target.soc, part.facts.cost


def _bounds(found: list[tuple[str, str, str, CostFacts]]) -> Iterator[Content]:
    bounds = [
        (component, bucket, target, made)
        for component, bucket, target, cost in found
        if (made := bound(target, cost)) is not None
    ]
    rows = [(*place, _time(each.compute_s), _time(each.move_s), each.source) for *place, each in bounds]
    shown = table([_BOUNDS, *rows], "A bound by published peaks: no run can be faster, and most are much slower")
    if shown is not None:
        yield folded("What no run can be faster than", shown)
    unknown = sorted({each[2] for each in found} - {each[2] for each in bounds})
    if unknown:
        yield note(f"No peak figures are published of {', '.join(unknown)} that we know of.")


def _operators(found: list[tuple[str, str, str, CostFacts]]) -> Iterator[Content]:
    for component in dict.fromkeys(name for name, *_ in found):
        cost = next(cost for name, *_, cost in found if name == component)
        counted = Counter({kind: sum(made.values()) for kind, made in cost.operators.items()}).most_common()
        if not counted:
            continue
        rows = [
            (kind, str(count), ", ".join(f"{name} {times}" for name, times in cost.operators[kind].items()))
            for kind, count in counted
        ]
        caption = (
            f"{component}: operators of the compiler and the ONNX operators they came from, first bucket and target"
        )
        names, values = zip(*counted[:_MOST_BARS], strict=True)
        drawn = figure(charts.bars(names, values, "operators"), caption) if len(names) > 1 else None
        yield folded(
            f"{component}: what the compiler made of the operators", drawn, table([_OPERATORS, *rows], caption)
        )


def _told(count: int | None) -> str:
    return "not told" if count is None else human_bytes(count)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "not published"
    return f"{seconds * 1e6:,.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:,.2f} ms"
