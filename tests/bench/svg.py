"""Bars in SVG: no more than the plots of the report need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape, quoteattr

TEXT_PX = 13
INK, FAINT, PAPER = "#1f2328", "#d1d9e0", "#ffffff"
CHARACTER_PX = 7.2  # of a digit at TEXT_PX in common sans-serif fonts, rounded up


@dataclass
class Svg:
    """A drawing of fixed size in pixels, with a background, so that it reads on dark pages too."""

    width: float
    height: float
    parts: list[str] = field(default_factory=list)

    def rect(self, x: float, y: float, width: float, height: float, fill: str, title: str = "") -> None:
        """A filled rectangle; `title` shows under the pointer."""
        inner = f"<title>{escape(title)}</title>" if title else ""
        size = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}"'
        self.parts.append(f'<rect {size} fill="{fill}">{inner}</rect>')

    def text(self, x: float, y: float, text: str, *, anchor: str = "start", bold: bool = False) -> None:
        """Text whose baseline is at y; `anchor` is start, middle or end."""
        weight = ' font-weight="bold"' if bold else ""
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight}>{escape(text)}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """A faint line."""
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{FAINT}"/>')

    def curve(self, points: Sequence[tuple[float, float]], colour: str) -> None:
        """A line through points, with a dot on each."""
        listed = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{listed}" fill="none" stroke="{colour}" stroke-width="2"/>')
        self.parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]

    def document(self, title: str) -> str:
        """The drawing as a file."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width:.0f}" height="{self.height:.0f}"'
            f' viewBox="0 0 {self.width:.0f} {self.height:.0f}" role="img" aria-label={quoteattr(title)}'
            f' font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="{TEXT_PX}"'
            f' fill="{INK}">'
        )
        background = f'<rect width="100%" height="100%" fill="{PAPER}"/>'
        return "\n".join([head, f"<title>{escape(title)}</title>", background, *self.parts, "</svg>\n"])


@dataclass(frozen=True)
class Bar:
    """A horizontal bar: what it is of, its value, the value in words, its colour."""

    label: str
    value: float
    words: str
    fill: str


BAR_PX, GAP_PX, TITLE_PX = 18, 6, 26


def bars_height(count: int) -> float:
    """How high :func:`bars` draws."""
    return TITLE_PX + count * (BAR_PX + GAP_PX)


def bars(svg: Svg, x: float, y: float, width: float, title: str, each: Sequence[Bar]) -> None:
    """A title and bars below it, to one scale, their labels at the left and their values at the right."""
    svg.text(x, y + TEXT_PX, title, bold=True)
    labels = max(len(bar.label) for bar in each) * CHARACTER_PX
    words = max(len(bar.words) for bar in each) * CHARACTER_PX + 8
    scale = (width - labels - words) / (max(bar.value for bar in each) or 1)
    for number, bar in enumerate(each):
        top = y + TITLE_PX + number * (BAR_PX + GAP_PX)
        base = top + BAR_PX - 5
        svg.text(x + labels - 6, base, bar.label, anchor="end")
        svg.rect(x + labels, top, bar.value * scale, BAR_PX, bar.fill, f"{bar.label}: {bar.words}")
        svg.text(x + labels + bar.value * scale + 6, base, bar.words)


def legend(svg: Svg, x: float, y: float, width: float, entries: Sequence[tuple[str, str]]) -> float:
    """Names with their colours, in as many rows as they need; how high that is."""
    left, top = x, y
    for name, fill in entries:
        needed = 24 + len(name) * CHARACTER_PX + 12
        if left + needed > x + width and left > x:
            left, top = x, top + BAR_PX + GAP_PX
        svg.rect(left, top, 14, 14, fill)
        svg.text(left + 20, top + 12, name)
        left += needed
    return top + BAR_PX + GAP_PX - y
