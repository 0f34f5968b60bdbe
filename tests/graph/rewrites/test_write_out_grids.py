from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.grids import write_out_grids
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites, without_rewrites

SIZES = {"pictures": (2, 4, 9, 12), "one": (1, 3, 8, 8), "volumes": (2, 1, 4, 5, 6)}


def build(name: str, corners: int = 0) -> tuple[ModelProto, dict[str, NDArray[np.float32]]]:
    size = SIZES[name]
    rank = len(size) - 2
    dims = ",".join(map(str, (size[0], *size[2:], rank)))
    text = f"""g (float[{size[0]},{rank},{rank + 1}] x) => (float[{dims}] y) {{
        theta = Add (x, eye)  y = AffineGrid <align_corners = {corners}> (theta, size)
    }}"""
    constants = {"size": np.array(size), "eye": np.eye(rank, rank + 1, dtype=np.float32)}
    x = np.random.default_rng(0).normal(size=(size[0], rank, rank + 1)) * 0.3
    return graph(text, constants, opset=20), {"x": x.astype(np.float32)}


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("name", SIZES)
def test_the_grid_stays_what_it_was(name: str, corners: int, tmp_path: Path) -> None:
    model, feeds = build(name, corners)
    before = outputs(model, feeds)["y"]

    assert apply_all(model, tmp_path)["write_out_grids"] == 1

    assert operators(model)["AffineGrid"] == 0
    np.testing.assert_allclose(outputs(model, feeds)["y"], before, rtol=1e-5, atol=1e-6)
    assert write_out_grids.apply(model, tmp_path) == 0


def test_one_row_at_the_corners_is_left_alone(tmp_path: Path) -> None:
    text = "g (float[1,2,3] x) => (float[1,1,6,2] y) { y = AffineGrid <align_corners = 1> (x, size) }"
    model = graph(text, {"size": np.array([1, 1, 1, 6])}, opset=20)
    assert write_out_grids.apply(model, tmp_path) == 0


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("name", SIZES)
def test_the_chip_takes_it(name: str, rounded: bool, tmp_path: Path) -> None:
    model, feeds = build(name)
    component = with_rewrites(tmp_path / "model", model)
    made = component.quantize("all", component.calibrate([feeds])) if rounded else component.rewrite["all"]

    chip = on_chip(made, [feeds], tmp_path / "chip")

    assert chip.cpu_ops == set()
    assert sqnr_db(on_cpu(component.ingest, [feeds]), chip.outputs, "y") > 60


def test_a_picture_is_sampled_by_it(tmp_path: Path) -> None:
    text = """g (float[1,3,16,16] picture, float[1,2,3] x) => (float[1,3,16,16] y) {
        theta = Add (x, eye)  grid = AffineGrid (theta, size)  y = GridSample (picture, grid)
    }"""
    numbers = np.random.default_rng(0)
    constants = {"size": np.array([1, 3, 16, 16]), "eye": np.eye(2, 3, dtype=np.float32)}
    rows = np.sin(np.arange(16) / 3)
    feeds = {
        "picture": (rows[:, None] * rows * np.ones((1, 3, 1, 1))).astype(np.float32),
        "x": (numbers.normal(size=(1, 2, 3)) * 0.2).astype(np.float32),
    }
    component = with_rewrites(tmp_path / "model", graph(text, constants, opset=20))
    chip = on_chip(component.quantize("all", component.calibrate([feeds])), [feeds], tmp_path / "chip")
    assert chip.cpu_ops == set()
    assert sqnr_db(on_cpu(component.ingest, [feeds]), chip.outputs, "y") > 50


def test_qnn_leaves_it_to_the_cpu(tmp_path: Path) -> None:
    model, feeds = build("one")
    component = without_rewrites(tmp_path / "model", model)
    assert on_chip(component.rewrite["all"], [feeds], tmp_path / "chip").cpu_ops == {"AffineGrid"}, "drop it"
