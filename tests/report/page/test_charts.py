"""What stands on charts and beside pictures: levels that can be read, each run of a step, colours as they were seen."""

from __future__ import annotations

import base64
import io
from xml.etree.ElementTree import Element

import numpy as np
import pytest
from PIL import Image

from pipeline.contracts.climb import Attempt
from pipeline.contracts.preview import Picture, Shown
from pipeline.report.page import charts
from pipeline.report.page.precision import tried
from pipeline.report.page.samples import _difference, _picture


def written(chart: Element) -> list[str]:
    return [each.text or "" for each in chart.iter("text")]


@pytest.mark.parametrize(
    ("low", "high"), [(-0.203, 0.166), (-1.0, 1.0), (0.0, 0.3), (-3e-5, 4e-5), (1000.0, 1004.0), (-1.7e4, 2.9e4)]
)
def test_levels_of_a_curve_are_short_to_write(low: float, high: float) -> None:
    chart = charts.curve([low, low], [high, high], 43844)
    levels = [float(text) for text in written(chart) if text]
    ups = [each for each in levels if low - (high - low) <= each <= high + (high - low)]
    assert len(ups) >= 4
    assert all(len(f"{each:g}") <= 7 for each in levels), levels
    if low < 0 < high:
        assert "0" in written(chart), "and no number that a float of 0 comes to, such as -2.8e-17"


def test_a_flat_curve_is_drawn() -> None:
    assert charts.curve([0.0, 0.0], [0.0, 0.0], 2).tag == "svg"


def test_attempts_are_counted_in_whole_numbers() -> None:
    attempts = [float(number) for number in range(1, 8)]
    chart = charts.scatter([charts.Line("total", attempts, [12.0] * 7)], "attempt", "dB")
    assert [text for text in written(chart) if text in {"1", "2", "3", "4", "5", "6", "7"}] == [*"1234567"]


def test_a_key_has_what_is_drawn_as_it_is_drawn() -> None:
    lines = [charts.Line("32", [0, 1], [50.0, 40.0]), charts.Line("64", [0, 1], [None, None]),
             charts.Line("a long name of a bucket", [0, 1], [51.0, None])]  # fmt: skip
    ladder = charts.ladder(["padding", "total"], lines, [60.0, None], 100.0)
    found = dict(charts.key(lines, asked=True))
    assert [*found] == ["asked for", "32", "a long name of a bucket"]
    drawn = {each.get("stroke") for each in ladder.iter("path")}
    for name, piece in found.items():
        (colour,) = {each.get("stroke") for each in piece.iter("path")}
        assert colour in drawn
        assert len([*piece.iter("marker")]) == (name != "asked for")
        assert name not in written(ladder), "a name in the drawing is cut off where it is narrow"
    assert [*dict(charts.key(lines, asked=False))] == ["32", "a long name of a bucket"]


def test_each_run_of_a_step_is_a_bar() -> None:
    once = charts.spans({"a": [0.0], "b": [1.0]}, {"a": [1.0], "b": [2.0]}, "s")
    thrice = charts.spans({"a": [0.0], "b": [1.0, 5.0, 9.0]}, {"a": [1.0], "b": [2.0, 6.0, 10.0]}, "s")

    def bars(chart: Element) -> int:
        return sum(each.get("fill") == "var(--s0)" for each in chart.iter())

    assert bars(thrice) == bars(once) + 2


def test_what_was_tried_has_numbers_as_its_chart_has_and_no_empty_columns() -> None:
    made = tried(
        "net",
        [
            Attempt("w8a16", "verify:net", "it misses", {"quantization": 12.4, "total": 12.4}, 39_000),
            Attempt("fp16", "", "", {"compile": 35.7, "total": 35.7}, 0),
        ],
    )
    cells = [[cell.text for cell in row] for each in made for row in each.iter("tr")]
    assert cells == [
        ["attempt", "precision", "quantization", "compile", "total", "weights", "what it missed"],
        ["1", "w8a16", "12.4", "–", "12.4", "39.0 kB", "it misses"],
        ["2", "fp16", "–", "35.7", "35.7", "–", "✓ keeps to all"],
    ]


def test_pictures_that_go_in_as_blue_green_red_are_seen_as_they_were_taken() -> None:
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[..., 0] = 200  # blue, as the model has it
    picture = Picture(8, 8, 3, base64.b64encode(pixels.tobytes()).decode())
    made = _picture(
        Shown(name="x", dtype="float32", shape=(1, 3, 8, 8), low=0.0, high=1.0, picture=picture), "input", turned=True
    )
    assert made is not None
    (image,) = made.iter("img")
    seen = Image.open(io.BytesIO(base64.b64decode(str(image.get("src")).partition(",")[2])))
    assert seen.getpixel((0, 0)) == (0, 0, 200)


def test_a_difference_says_what_is_black_and_white() -> None:
    told = _difference(Shown(name="y", dtype="float64", shape=(8, 8), low=-0.0213, high=0.5))
    assert told == "difference, -0.021 (black) to 0.5 (white)"
    assert _difference(Shown(name="y", dtype="float64", shape=(8, 8), low=None, high=None, bad=64)) == "difference"
