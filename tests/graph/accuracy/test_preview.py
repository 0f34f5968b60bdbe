"""A sample is shown as what it is, small, whatever its arrays hold."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.contracts.measures import Figures
from pipeline.contracts.preview import PREVIEW, Preview
from pipeline.graph.accuracy.figures.preview import worst_sample, write_preview

_Array = NDArray[Any]


def shown(folder: Path, inputs: dict[str, _Array], outputs: dict[str, _Array] | None = None) -> Preview:
    outputs = {"y": np.ones(2, np.float32)} if outputs is None else outputs
    write_preview(folder, "s", ("a text", None), inputs, outputs, {name: each * 1.1 for name, each in outputs.items()})
    return Preview.from_json(json.loads((folder / PREVIEW).read_text("utf-8")))


def figures(sample: str, worst_db: float | None) -> Figures:
    return Figures(30.0, 30.0, worst_db, sample, 1.0, 0.1)


def test_pictures_are_told_from_channels_and_size(tmp_path: Path) -> None:
    ramp = np.linspace(0, 1, 3 * 20 * 30, dtype=np.float32)
    for shape, size in (((1, 3, 20, 30), (30, 20, 3)), ((20, 30, 3), (30, 20, 3)), ((1, 600, 300), (128, 128, 1))):
        array = np.resize(ramp, shape)
        picture = shown(tmp_path, {"x": array}).inputs[0].picture
        assert picture is not None
        assert (picture.width, picture.height, picture.channels) == size
        pixels = base64.b64decode(picture.pixels)
        assert len(pixels) == size[0] * size[1] * size[2]
        assert (min(pixels), max(pixels)) == (0, 255)


def test_a_picture_keeps_its_colours_in_place(tmp_path: Path) -> None:
    array = np.zeros((1, 3, 8, 9), np.float32)
    array[0, 1, 2, 5] = 1.0
    picture = shown(tmp_path, {"x": array}).inputs[0].picture
    assert picture is not None
    pixels = np.frombuffer(base64.b64decode(picture.pixels), np.uint8).reshape(8, 9, 3)
    assert np.argwhere(pixels).tolist() == [[2, 5, 1]]


def test_a_long_row_is_a_curve_that_keeps_its_peaks(tmp_path: Path) -> None:
    wave = np.sin(np.arange(16000, dtype=np.float32) / 50)
    wave[8000] = 7.0
    found = shown(tmp_path, {"x": wave[None]}).inputs[0]
    assert found.curve is not None
    assert len(found.curve.low) == len(found.curve.high) == 240
    assert max(found.curve.high) == 7.0
    assert found.high == 7.0


def test_few_numbers_are_listed(tmp_path: Path) -> None:
    found = shown(tmp_path, {"x": np.array([[3, 1, 2]], np.int64)}).inputs[0]
    assert found.values == (3.0, 1.0, 2.0)
    assert (found.picture, found.curve) == (None, None)


def test_what_is_not_finite_is_counted(tmp_path: Path) -> None:
    for size in (4, 100, 64 * 64):
        array: _Array = np.ones(size, np.float32)
        array[:3] = np.nan, np.inf, -np.inf
        array = array.reshape(64, 64) if size == 64 * 64 else array
        found = shown(tmp_path, {"x": array}, {"y": array})
        assert found.inputs[0].bad == 3
        assert found.outputs[0].sqnr_db is None
    nothing = shown(tmp_path, {"x": np.full((8, 8), np.nan, np.float32)}).inputs[0]
    assert (nothing.low, nothing.high, nothing.bad) == (None, None, 64)


def test_of_many_arrays_the_rest_is_counted(tmp_path: Path) -> None:
    many = {f"x{at}": np.zeros(1, np.float32) for at in range(9)}
    found = shown(tmp_path, many, many)
    assert (len(found.inputs), found.more_inputs) == (6, 3)
    assert (len(found.outputs), found.more_outputs) == (6, 3)


def test_it_stays_small(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {f"x{at}": rng.normal(size=(1, 3, 640, 640)).astype(np.float32) for at in range(2)}
    shown(tmp_path, arrays, arrays)
    assert (tmp_path / PREVIEW).stat().st_size < 700_000
    empty = shown(tmp_path, {"x": np.zeros((0, 4), np.float32), "y": np.zeros((), np.float32)})
    assert [each.values for each in empty.inputs] == [(), (0.0,)]


def test_the_worst_sample_is_that_of_the_worst_output() -> None:
    names = ["a", "b", "c"]
    assert worst_sample({"y": figures("b", 20.0), "z": figures("c", 10.0)}, names) == 2
    assert worst_sample({"y": figures("b", None), "z": figures("c", -90.0)}, names) == 1
