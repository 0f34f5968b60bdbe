"""No text of a model becomes markup, and a page allows nothing but its own style and pictures within it."""

from __future__ import annotations

import base64
import hashlib
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from pipeline.report.page import charts, markup

EVIL = "</style></code><script>alert(1)</script><img src=x onerror=alert(2)>\" ' & \x1b[31m\u202e\ud800\0"


class Seen(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page.decode("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def evil_page() -> bytes:
    table = markup.table([("name", f">{EVIL}"), (EVIL, EVIL)], EVIL, codes=(0,))
    chart = charts.ladder([EVIL, "b"], [charts.Line(EVIL, [0, 1], [1.0, 2.0])], [1.0, None], 100.0)
    bars = charts.bars([EVIL, "b"], [1.0, 2.0], EVIL)
    spans = charts.spans({EVIL: [0.0]}, {EVIL: [1.0]}, EVIL)
    picture = markup.picture(1, 1, 1, b"\0", EVIL)
    parts = [markup.figure(each, EVIL) for each in (chart, bars, spans)]
    return markup.page(EVIL, [markup.section(EVIL, "a", table, *parts, picture, markup.folded(EVIL, EVIL))])


def test_no_text_becomes_markup() -> None:
    seen = Seen(evil_page())
    names = {tag for tag, _ in seen.tags}
    assert not names & {"script", "iframe", "object", "link", "form", "input", "foreignobject", "base", "a href"}
    assert [
        given["src"] for tag, given in seen.tags if tag == "img" and not str(given["src"]).startswith("data:")
    ] == []
    assert [name for _, given in seen.tags for name in given if name.startswith("on") or name == "style"] == []
    assert seen.text.count("alert(1)") >= 8, "it is there as text"
    assert r"\x1b[31m\u202e\ud800\x00" in seen.text


def test_the_policy_allows_the_page_s_own_style_alone() -> None:
    page = evil_page()
    (policy,) = (
        str(given["content"]) for tag, given in Seen(page).tags if given.get("http-equiv") == "Content-Security-Policy"
    )
    style = re.search(r"<style>(.*?)</style>", page.decode("utf-8"), re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    )


def test_names_within_charts_are_their_own() -> None:
    drawn = [charts.ladder(["a", "b"], [charts.Line("x", [0, 1], [1.0, 2.0])], [1.0, 1.0], 100.0) for _ in range(2)]
    page = markup.page("two", drawn).decode()
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len({*ids}) >= 4
    assert {*re.findall(r"url\(#([^)]+)\)", page)} <= {*ids}


def test_a_line_of_one_point_is_one() -> None:
    """A path `M 1,1 L` is an error in the console of a browser."""
    drawn = charts.scatter([charts.Line("x", [1.0], [1.0])], "x", "y", 2.0)
    assert [path.attrib["d"] for path in drawn.iter("path") if path.attrib["d"].rstrip().endswith("L")] == []


def test_the_same_page_has_the_same_bytes() -> None:
    assert evil_page() == evil_page()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(1, 1), (5, 3), (128, 128), (300, 200)])
def test_a_picture_is_png(size: tuple[int, int], channels: int) -> None:
    width, height = size
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, channels), np.uint8)
    image = markup.picture(width, height, channels, pixels.tobytes(), "noise")
    data = base64.b64decode(image.attrib["src"].removeprefix("data:image/png;base64,"))
    found = np.asarray(Image.open(io.BytesIO(data))).reshape(pixels.shape)
    assert np.array_equal(found, pixels)


def test_a_table_without_rows_is_none() -> None:
    assert markup.table([("a", "b")], "empty") is None
    assert markup.table([], "empty") is None


def test_text_after_elements_stays_in_its_place() -> None:
    made = markup.element("p", "a ", markup.code("b"), " c", markup.code("d"), None, " e", class_="x", aria_label="y")
    assert "".join(made.itertext()) == "a b cd e"
    assert made.attrib == {"class": "x", "aria-label": "y"}
