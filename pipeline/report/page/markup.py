"""HTML as a tree of elements, so that no text can become markup, whatever a model calls its values.

What is written is text or an attribute of :mod:`xml.etree.ElementTree`, which escapes both. The page's policy forbids
scripts, forms and every address but data: https://www.w3.org/TR/CSP3/.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from struct import pack
from xml.etree.ElementTree import Element, tostring

from pipeline.plain_text import printable
from pipeline.report.tables import Table

Content = Element | str | None
"""What an element holds: another one, text, or nothing."""

_LONG = 60
_BLOCK = 0xFFFF  # the most that a stored block of deflate holds


def element(tag: str, *contents: Content, **attributes: str) -> Element:
    """An element; in names of attributes a final `_` is dropped, and others stand for `-`: `class_`, `aria_label`."""
    made = Element(tag, {name.rstrip("_").replace("_", "-"): shown(value) for name, value in attributes.items()})
    for content in contents:
        if isinstance(content, Element):
            made.append(content)
        elif content is not None and len(made):
            made[-1].tail = (made[-1].tail or "") + shown(content)
        elif content is not None:
            made.text = (made.text or "") + shown(content)
    return made


def shown(text: str) -> str:
    """Text with what can't be seen, or is not allowed in HTML, written out."""
    return printable(text)


def section(title: str, name: str, *contents: Content) -> Element:
    """A part of the page that can be linked to by its name."""
    heading = element("h2", element("a", title, href=f"#{name}"), id=f"{name}-title")
    return element("section", heading, *contents, id=name, aria_labelledby=f"{name}-title")


def note(*contents: Content) -> Element:
    """A paragraph."""
    return element("p", *contents)


def code(text: str) -> Element:
    """A name or a command, as it is typed."""
    return element("code", text)


def folded(summary: str, *contents: Content) -> Element:
    """What is shown when its summary is clicked, or Enter is pressed on it."""
    return element("details", element("summary", summary), *contents)


def table(rows: Table, caption: str, *, codes: Sequence[int] = ()) -> Element | None:
    """A table without its empty columns, None if there are no rows. Columns of `codes` are names.

    A heading that begins with `>` aligns its column to the right, as in :data:`pipeline.report.tables.Table`.
    """
    heading, *body = rows or [[]]
    kept = [index for index in range(len(heading)) if any(row[index] for row in body)]
    if not body:
        return None
    head = element("tr", *(_cell("th", heading[at].removeprefix(">"), heading[at], scope="col") for at in kept))
    lines = []
    for row in body:
        cells = (_cell("td", code(row[at]) if at in codes and row[at] else row[at], heading[at]) for at in kept)
        lines.append(element("tr", *cells))
    made = element("table", element("caption", caption), element("thead", head), element("tbody", *lines))
    return element("div", made, class_="wide", tabindex="0", role="group", aria_label=caption)


def _cell(tag: str, content: Content, heading: str, **attributes: str) -> Element:
    if heading.startswith(">"):
        attributes["class_"] = "number"
    elif isinstance(content, str) and len(content) > _LONG:
        attributes["class_"] = "long"
    return element(tag, content, **attributes)


def decimal(value: float | None) -> str:
    """A number with one decimal place; a dash for None."""
    return "–" if value is None else f"{value:.1f}"


def figure(chart: Element, caption: str, key: Sequence[tuple[str, Element]] = ()) -> Element:
    """A chart with what it shows in words, and the names of its lines, each with a piece of it.

    On a narrow screen the chart is scrolled, by keys too; the names go to further lines.
    """
    chart.insert(0, element("title", caption))
    box = element("div", chart, class_="wide", tabindex="0", role="group", aria_label=caption)
    names = element("ul", *(element("li", drawn, " ", name) for name, drawn in key), class_="key") if key else None
    return element("figure", names, box, element("figcaption", caption))


def picture(width: int, height: int, channels: int, pixels: bytes, says: str) -> Element:
    """An image of `pixels`, row by row; `says` tells who can't see it what it is."""
    data = base64.b64encode(_png(width, height, channels, pixels)).decode()
    return element("img", src=f"data:image/png;base64,{data}", alt=says, width=str(width), height=str(height))


def page(title: str, contents: Iterable[Element]) -> bytes:
    """A whole page, UTF-8."""
    css = _style()
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", title),
    )
    style = Element("style")
    style.text = css
    head.append(style)
    root = element("html", head, element("body", *contents), lang="en")
    for number, chart in enumerate(root.iter("svg")):
        _name_apart(chart, f"c{number}-")
    made: bytes = tostring(root, encoding="utf-8", method="html")
    return b"<!doctype html>\n" + made + b"\n"


def _name_apart(chart: Element, prefix: str) -> None:
    """Make the names within a chart its own: each is drawn as if it were alone."""
    for each in chart.iter():
        for name, value in [*each.attrib.items()]:
            if name == "id":
                each.set(name, prefix + value)
            elif value.startswith("url(#"):
                each.set(name, f"url(#{prefix}{value[5:]}")


@cache
def _style() -> str:
    return Path(__file__).with_name("page.css").read_text("utf-8")


def _png(width: int, height: int, channels: int, pixels: bytes) -> bytes:
    """The pixels as PNG, in stored blocks: what compresses differs from one zlib to the next."""
    kind = {1: 0, 3: 2}[channels]
    stride = width * channels
    rows = b"".join(b"\0" + pixels[row * stride : (row + 1) * stride] for row in range(height))
    blocks = [rows[at : at + _BLOCK] for at in range(0, len(rows), _BLOCK)]
    stored = b"".join(
        pack("<BHH", number == len(blocks), len(block), len(block) ^ 0xFFFF) + block
        for number, block in enumerate(blocks, 1)
    )
    data = b"\x78\x01" + stored + pack(">I", zlib.adler32(rows))
    header = pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        pack(">I", len(body)) + name + body + pack(">I", zlib.crc32(name + body)) for name, body in chunks
    )
