"""The charts of a page, drawn by ziaplot (https://ziaplot.readthedocs.io, MIT) as SVG.

Series differ by mark and dash as well as by colour. Colours are variables of the page's style, which has a set for
light and one for dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element

import ziaplot
from ziaplot.canvas import Canvas

from pipeline.frozen import dataclass
from pipeline.report.page.markup import element, shown

Numbers = Sequence[float]

_STYLE = """
* { font: inherit; font_size: 14; color: var(--ink); edge_color: var(--rule); }
Canvas { color: none; }
Graph { color: none; edge_color: var(--rule); edge_width: 1; }
Graph.GridX { color: none; }
Graph.GridY { color: var(--rule); stroke: solid; stroke_width: 0.5; }
Graph.TickX { font_size: 14; height: 5; stroke_width: 1; color: var(--soft); num_format: g; pad: %g; }
Graph.TickY { font_size: 16; height: 0; stroke_width: 0; color: var(--soft); num_format: g; pad: 0.1; }
Graph.XName { font_size: 14; color: var(--soft); }
Graph.YName { font_size: 14; color: var(--soft); }
BarChartHoriz.TickY { font_size: 14; height: 5; stroke_width: 1; color: var(--soft); pad: 0.1; }
BarChartHoriz.GridY { color: none; }
Element { edge_color: none; }
"""
_MARKS = ("round", "square", "triangle", "triangled", "x", "+")
_DASHES = ("-", "--", ":", "-.", "-", "--")
_MARK = 5
_PIECE = (40, 14)
_STEP_DB = 20
_MOST_COUNTED = 20
COLOURS = 6
"""How many colours series may have."""


@dataclass(frozen=True)
class Line:
    """A line of a chart with its name; where `ys` is no number there is a gap."""

    name: str
    xs: Numbers
    ys: Sequence[float | None]


def ladder(rungs: Sequence[str], lines: Sequence[Line], asked: Sequence[float | None], most: float) -> Element:
    """SQNR in dB on each rung, a line for each bucket; a bar on each rung says what is asked for."""
    graph = _graph("", "dB", 640, 290, 0.5)
    for at, least in enumerate(asked):
        if least is not None:
            graph.add(ziaplot.PolyLine([at - 0.35, at + 0.35], [least, least]).color("var(--asked)").strokewidth(3))
    for number, line in enumerate(lines):
        points = [(x, y) for x, y in zip(line.xs, line.ys, strict=True) if y is not None]
        if points:
            graph.add(_drawn(points, number))
    graph.xticks([*range(len(rungs))], [*rungs])
    lowest = min([0.0, *(y for line in lines for y in line.ys if y is not None)])
    graph.yticks([*range(_STEP_DB * math.floor(lowest / _STEP_DB), int(most) + 1, _STEP_DB)])
    return _svg(graph)


def scatter(lines: Sequence[Line], x: str, y: str, asked: float | None = None) -> Element:
    """Points of several kinds, joined in the order of their x; `asked` is a level across."""
    graph = _graph(x, y, 720, 300, 0.15)
    xs = [each for line in lines for each in line.xs]
    if asked is not None and xs:
        graph.add(ziaplot.PolyLine([min(xs), max(xs)], [asked, asked]).color("var(--asked)").strokewidth(3))
    for number, line in enumerate(lines):
        points = sorted((at, value) for at, value in zip(line.xs, line.ys, strict=True) if value is not None)
        if points:
            graph.add(_drawn(points, number))
    if all(at == int(at) for at in xs) and 0 < len(set(xs)) <= _MOST_COUNTED:
        graph.xticks(sorted(set(xs)), [f"{at:.0f}" for at in sorted(set(xs))])
    return _svg(graph)


def key(lines: Sequence[Line], *, asked: bool) -> list[tuple[str, Element]]:
    """What stands on a ladder or among points: each name with a piece of its line; `asked`: a level is drawn, too.

    It is no part of the drawing, where long names of many lines would be cut off on a narrow screen.
    """
    found = [("asked for", _piece("asked for", "var(--asked)", "-", 3))] if asked else []
    for number, line in enumerate(lines):
        if any(y is not None for y in line.ys):
            colour, dash, mark = _look(number)
            found.append((line.name, _piece(line.name, colour, dash, 2, mark)))
    return found


def overlay(expected: tuple[Numbers, Numbers], got: tuple[Numbers, Numbers], length: int) -> Element:
    """Two long rows of numbers, one over the other: the least and the largest of each piece."""
    graph = _graph("", "", 720, 190, 0.0)
    step = length / max(1, len(expected[0]))
    xs = [(at + 0.5) * step for at in range(len(expected[0]))]
    wide = ziaplot.LineFill(xs, [*expected[1]], [*expected[0]]).fill("var(--band)").color("var(--s0)")
    graph.add(wide.strokewidth(1))
    for row in got:
        graph.add(ziaplot.PolyLine(xs, [*row]).color("var(--s1)").strokewidth(1).stroke("--"))
    return _svg(_framed(graph, [*expected[0], *expected[1], *got[0], *got[1]], length))


def curve(low: Numbers, high: Numbers, length: int) -> Element:
    """A long row of numbers: the least and the largest of each piece."""
    graph = _graph("", "", 720, 140, 0.0)
    xs = [(at + 0.5) * length / max(1, len(low)) for at in range(len(low))]
    graph.add(ziaplot.LineFill(xs, [*high], [*low]).fill("var(--band)").color("var(--s0)").strokewidth(1))
    return _svg(_framed(graph, [*low, *high], length))


def _framed(graph: Any, values: Numbers, length: int) -> Any:
    """A graph of a row of numbers from its first to its last, with at most six levels that are short to write."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    if low == high:
        return graph
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 2.5, 5, 10) if power * each >= rough * (1 - 1e-9))
    levels = [at * step for at in range(math.floor(low / step), math.ceil(high / step) + 1)]
    # Written by the step's digits: sums of steps are off by what floats can't hold, -2.8e-17 in place of 0.
    graph.yticks(levels, [f"{float(f'{level:.12g}') if abs(level) > step / 2 else 0:g}" for level in levels])
    return graph.xrange(0, length)


def bars(names: Sequence[str], values: Numbers, unit: str) -> Element:
    """A bar across for each name, the first on top."""
    ziaplot.css(_STYLE % 0.1)
    chart = ziaplot.BarChartHoriz().axesnames(x=unit).legend("none").size(720, 70 + 26 * len(names))
    for name, value in zip(names, values, strict=True):
        chart.add(ziaplot.Bar(value).name(shown(name)).color("var(--s0)"))
    return _svg(chart)


def spans(begins: Mapping[str, Numbers], ends: Mapping[str, Numbers], unit: str) -> Element:
    """When each of these began and ended, each time, by name; the first on top."""
    names = [*begins]
    graph = _graph(unit, "", 720, 70 + 21 * len(names), 0.02)
    rows = [len(names) - 1 - at for at in range(len(names))]
    thin = max([1.0, *(end for name in names for end in ends[name])]) / 300
    for row, name in zip(rows, names, strict=True):
        for begin, end in zip(begins[name], ends[name], strict=True):
            graph.add(ziaplot.BarsHoriz([row], [max(end, begin + thin)], [begin], width=0.6).color("var(--s0)"))
    graph.yticks(rows, [shown(name) for name in names]).yrange(-0.6, len(names) - 0.4)
    return _svg(graph)


def _graph(x: str, y: str, width: int, height: int, pad: float) -> Any:
    ziaplot.css(_STYLE % pad)
    return ziaplot.Graph().legend("none").size(width, height).axesnames(x or None, y or None)


def _drawn(points: Iterable[tuple[float, float]], number: int) -> Any:
    found = [*points]
    xs, ys = zip(*(found if len(found) > 1 else found * 2), strict=True)  # a path of one point is none in SVG
    colour, dash, mark = _look(number)
    return ziaplot.PolyLine([*xs], [*ys]).color(colour).strokewidth(2).stroke(dash).marker(mark, _MARK)


def _look(number: int) -> tuple[str, str, str]:
    """Colour, dash and mark of a series."""
    return f"var(--s{number % COLOURS})", _DASHES[number % len(_DASHES)], _MARKS[number % len(_MARKS)]


def _piece(name: str, colour: str, dash: str, width: int, mark: str = "") -> Element:
    """A short piece of a line, with its mark in the middle."""
    canvas: Any = Canvas(*_PIECE)
    across, down = _PIECE
    canvas.path([0, across], [down / 2] * 2, dash, colour, width)
    if mark:  # on a path of its own, as each end of one has the mark
        marker = canvas.definemarker(mark, _MARK, colour, colour, 0)
        canvas.path([across / 2] * 2, [down / 2] * 2, "-", colour, width, marker)
    made: Element = canvas.xml()
    made.insert(0, element("title", f"the line of {name}"))
    made.set("role", "img")
    return made


def _svg(graph: Any) -> Element:
    made: Element = graph.svgxml()
    made.set("role", "img")
    made.set("class", "chart")
    return made
