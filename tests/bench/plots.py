"""The plots of the report, each an SVG document, of whatever was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tests.bench.growth import COMMANDS, MODELS
from tests.bench.ours import by_stage
from tests.bench.results import Figure, Results, Run, cpu_s, number, tree_bytes, wall_s
from tests.bench.suite import FLOOR, GROWN, OLIVE, OURS, PLAIN
from tests.bench.svg import BAR_PX, CHARACTER_PX, GAP_PX, TEXT_PX, TITLE_PX, Bar, Svg, bars, bars_height, legend

WIDTH, MARGIN = 900, 16
_PANEL_PX = 300
# The colours of Okabe and Ito, which people tell apart whatever they see of colour.
_TOOLS = {OURS: "#0072B2", PLAIN: "#E69F00", OLIVE: "#CC79A7", FLOOR: "#009E73"}
_STAGES = ("#56B4E9", "#E69F00", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#8c6bb1", "#66c2a4", "#a6761d")
_GREYS = {"doit": "#6e7781", "template": "#9aa4ae", "ends": "#c9d1d9"}
_REST = _GREYS["template"]


def tools(results: Results) -> str:
    """Each tool's time, memory and bytes, a panel each."""
    model = str(results.about["model"])
    panels: list[tuple[str, str, Figure, Callable[[float], str]]] = [
        ("Cold build: wall time", "cold", wall_s, _seconds),
        ("Cold build: CPU", "cold", cpu_s, _seconds),
        ("Cold build: peak memory, all processes", "cold", tree_bytes, _megabytes),
        ("Cold build: store, cache or side files", "cold", number("kept_bytes"), _megabytes),
        ("Nothing changed: wall time", "again", wall_s, _seconds),
        ("One sample changed: wall time", "changed sample", wall_s, _seconds),
        ("A second SoC: wall time", "second SoC", wall_s, _seconds),
        ("The last bucket, added to the others: wall time", "added bucket", wall_s, _seconds),
    ]
    drawn = []
    for title, case, figure, form in panels:
        found = []
        for tool in (OURS, PLAIN, OLIVE):
            value = results.median(model, case, tool, figure)
            repeated = value is None and tool == PLAIN and case in ("again", "changed sample")
            if repeated:  # it keeps nothing, so that this is a cold run
                value = results.median(model, "cold", tool, figure)
            if value is None and case == "added bucket":
                value = results.median(model, f"cold, run {len(results.about['buckets'])}", tool, figure)
            if value is not None:
                words = form(value) + (" (all again)" if repeated else "")
                found.append(Bar(tool, value, words, _TOOLS[tool]))
        if found:
            drawn.append((title, found))
    column = (WIDTH - 3 * MARGIN) / 2
    row = bars_height(3) + MARGIN
    svg = Svg(WIDTH, MARGIN + row * ((len(drawn) + 1) // 2))
    for place, (title, each) in enumerate(drawn):
        bars(svg, MARGIN + place % 2 * (column + MARGIN), MARGIN + place // 2 * row, column, title, each)
    return svg.document("Time, memory and bytes of each tool")


def stages(results: Results) -> str:
    """Where the CPU seconds of a cold build go, by stage, above the work that must be done."""
    model = str(results.about["model"])
    used = stage_seconds(results.of(model, "cold", OURS))
    least = {
        name: results.median(model, case, FLOOR, cpu_s) or 0.0
        for case, name in (("compile", "QNN's compile"), ("inference", "inference"))
    }
    scale = (WIDTH - 2 * MARGIN - 90) / max(sum(used.values()), sum(least.values()), 1e-9)
    colours = stage_colours(used) | {"QNN's compile": _TOOLS[FLOOR], "inference": "#8fd3b6"}
    svg = Svg(WIDTH, 0)
    top = float(MARGIN)
    for title, parts in (
        (f"CPU seconds of a cold build by stage: {sum(used.values()):.1f} s", used),
        (f"of which nobody can leave out: {sum(least.values()):.1f} s", least),
    ):
        svg.text(MARGIN, top + TEXT_PX, title, bold=True)
        top += TITLE_PX
        left = float(MARGIN)
        for name, seconds in parts.items():
            svg.rect(left, top, seconds * scale, 2 * BAR_PX, colours[name], f"{name}: {seconds:.2f} s")
            left += seconds * scale
        top += 2 * BAR_PX + GAP_PX
        top += legend(svg, MARGIN, top, WIDTH - 2 * MARGIN, [(f"{n} {s:.2f} s", colours[n]) for n, s in parts.items()])
        top += MARGIN
    svg.height = top
    return svg.document("CPU seconds of a cold build by stage")


def timeline(results: Results) -> str:
    """When each step of one cold build ran: the build of median length."""
    model = str(results.about["model"])
    runs = sorted(results.of(model, "cold", OURS), key=lambda run: wall_s(run) or 0.0)
    usage = runs[len(runs) // 2].usage if runs else None
    spans = sorted((span for span in usage.spans if ":" in span.label), key=lambda span: span.start_s) if usage else []
    colours = stage_colours(dict.fromkeys(span.label.partition(":")[0] for span in spans))
    end = usage.wall_s if usage else 1.0
    labels = max((len(span.label) for span in spans), default=0) * CHARACTER_PX
    scale = (WIDTH - 2 * MARGIN - labels - 60) / end
    svg = Svg(WIDTH, 2 * MARGIN + TITLE_PX + len(spans) * (BAR_PX + 2) + 24)
    svg.text(MARGIN, MARGIN + TEXT_PX, f"Steps of a cold build: {end:.1f} s from start to end", bold=True)
    first, bottom = MARGIN + TITLE_PX, MARGIN + TITLE_PX + len(spans) * (BAR_PX + 2)
    for second in range(0, int(end) + 1, 1 if end < 15 else 5):
        x = MARGIN + labels + second * scale
        svg.line(x, first, x, bottom + 4)
        svg.text(x, bottom + 20, f"{second} s", anchor="middle")
    for row, span in enumerate(spans):
        top = first + row * (BAR_PX + 2)
        x = MARGIN + labels + span.start_s * scale
        svg.text(MARGIN + labels - 6, top + BAR_PX - 5, span.label, anchor="end")
        wide = max((span.end_s - span.start_s) * scale, 2)
        svg.rect(x, top, wide, BAR_PX, colours[span.label.partition(":")[0]], f"{span.label}: {span.cpu_s:.2f} s CPU")
        svg.text(x + wide + 5, top + BAR_PX - 5, f"{span.end_s - span.start_s:.1f} s")
    return svg.document("Steps of a cold build over time")


def growth(results: Results) -> str:
    """What buckets and SoCs cost, in seconds and in bytes."""
    model = str(results.about["model"])
    buckets = [str(bucket) for bucket in results.about["buckets"]]
    panels: list[tuple[str, list[Bar]]] = []
    found = []
    for count in range(1, len(buckets) + 1):
        value = results.median(model, f"cold, buckets {' '.join(buckets[:count])}", OURS, wall_s)
        if value is not None:
            found.append(Bar(", ".join(buckets[:count]), value, _seconds(value), _TOOLS[OURS]))
    panels.append(("Cold build by buckets: wall time", found))
    of_packings: list[tuple[str, Figure, Callable[[float], str]]] = [
        ("Shipped, all buckets", number("shipped_bytes"), _megabytes),
        ("Wall time to build it, or to add the SoC", wall_s, _seconds),
    ]
    for title, figure, form in of_packings:
        found = []
        for packing, fill in (("separate", _REST), ("buckets", _TOOLS[OURS]), ("socs", _TOOLS[FLOOR])):
            for count in (1, 2, 3):
                value = results.median(model, f"packing {packing}, SoCs {count}", OURS, figure)
                if value is not None:
                    label = f"{packing}, {count} SoC{'s' * (count > 1)}"
                    found.append(Bar(label, value, form(value), fill))
        panels.append((title, found))
    drawn = [(title, found) for title, found in panels if found]
    svg = Svg(WIDTH, MARGIN + sum(bars_height(len(found)) + MARGIN for _, found in drawn))
    top = float(MARGIN)
    for title, found in drawn:
        bars(svg, MARGIN, top, WIDTH - 2 * MARGIN, title, found)
        top += bars_height(len(found)) + MARGIN
    return svg.document("What buckets and SoCs cost")


def scale(results: Results) -> str:
    """CPU and memory of commands over the number of steps in a project, both axes logarithmic."""
    svg = Svg(WIDTH, _PANEL_PX + 2 * MARGIN)
    wide = (WIDTH - 3 * MARGIN) / 2
    megabytes: Figure = lambda run: run.usage.peak_process_bytes / 1e6 if run.usage else None  # noqa: E731
    for place, (title, figure, unit) in enumerate((("CPU", cpu_s, "s"), ("Largest process", megabytes, "MB"))):
        _curves(svg, MARGIN + place * (wide + MARGIN), wide, title, unit, _grown(results, figure))
    return svg.document("What commands cost as projects grow")


def _grown(results: Results, figure: Figure) -> dict[str, list[tuple[float, float]]]:
    """Of each command, how much it took with how many steps."""
    found: dict[str, list[tuple[float, float]]] = {}
    for kind in COMMANDS:
        for count in MODELS:
            runs = results.of(GROWN, f"{kind}, {count}", OURS)
            value = results.median(GROWN, f"{kind}, {count}", OURS, figure)
            if runs and value:
                found.setdefault(kind, []).append((runs[0].numbers["steps"], value))
    return found


def _curves(
    svg: Svg, left: float, wide: float, title: str, unit: str, found: dict[str, list[tuple[float, float]]]
) -> None:
    points = [point for each in found.values() for point in each]
    if not points:
        return
    spans = [
        [math.floor(math.log10(min(axis))), math.ceil(math.log10(max(axis)))] for axis in zip(*points, strict=True)
    ]
    top, bottom, start = MARGIN + 2 * TITLE_PX, MARGIN + _PANEL_PX - TITLE_PX, left + 60
    end = left + wide - 110

    def x(steps: float) -> float:
        (low, high), value = spans[0], math.log10(steps)
        return start + (value - low) / max(high - low, 1) * (end - start)

    def y(amount: float) -> float:
        (low, high), value = spans[1], math.log10(amount)
        return bottom - (value - low) / max(high - low, 1) * (bottom - top)

    svg.text(left, MARGIN + TEXT_PX, f"{title} by steps in the project", bold=True)
    for power in range(spans[0][0], spans[0][1] + 1):
        svg.line(x(10**power), top, x(10**power), bottom)
        svg.text(x(10**power), bottom + TEXT_PX + 4, f"{10**power:,}", anchor="middle")
    for power in range(spans[1][0], spans[1][1] + 1):
        svg.line(start, y(10**power), end, y(10**power))
        svg.text(start - 6, y(10**power) + 4, f"{10**power:g} {unit}", anchor="end")
    last = float(bottom + TEXT_PX)
    for (kind, each), colour in sorted(zip(found.items(), _STAGES[1:], strict=False), key=lambda one: one[0][1][-1][1]):
        svg.curve([(x(steps), y(amount)) for steps, amount in each], colour)
        last = min(last - TEXT_PX - 2, y(each[-1][1]) + 4)
        svg.text(end + 8, last, kind)


def _seconds(value: float) -> str:
    return f"{value:.{1 if value >= 1 else 2}f} s"


def _megabytes(value: float) -> str:
    return f"{value / 1e6:.{0 if value >= 1e7 else 1}f} MB"


def stage_seconds(runs: Sequence[Run]) -> dict[str, float]:
    """CPU seconds of each stage, the mean over the runs, in the order in which the stages begin."""
    mean: dict[str, float] = {}
    measured = [by_stage(run.usage) for run in runs if run.usage is not None]
    for each in measured:
        for stage, seconds in each.items():
            mean[stage] = mean.get(stage, 0.0) + seconds / len(measured)
    return mean


def stage_colours(stages: dict[str, float] | dict[str, None]) -> dict[str, str]:
    """A colour for each stage; greys for what is no stage."""
    named = [stage for stage in stages if stage not in _GREYS]
    return {stage: _STAGES[place % len(_STAGES)] for place, stage in enumerate(named)} | _GREYS
