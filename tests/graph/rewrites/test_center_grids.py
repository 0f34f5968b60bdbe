from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.grids import center_grids
from tests.conformance.batches import run_batch
from tests.support.graphs import graph, outputs

X = np.arange(24, dtype=np.float32).reshape(1, 1, 4, 6)


def ties(corners: int) -> np.ndarray:
    """Points halfway between the pixels of a row, and some outside and in the middle."""
    places = np.array([-0.5, 0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 2.0, -3.0, 9.0])
    x = 2 * places / 5 - 1 if corners else (2 * places + 1) / 6 - 1
    return np.stack([x, np.full(len(x), -0.75 if not corners else -1.0)], -1)[None, None].astype(np.float32)


def build(grid: np.ndarray, corners: int, padding: str = "zeros", mode: str = "nearest") -> ModelProto:
    how = f'mode = "{mode}", padding_mode = "{padding}", align_corners = {corners}'
    text = f"g (float[1,1,4,6] x) => (float[1,1,1,{grid.shape[2]}] y) {{ y = GridSample <{how}> (x, grid) }}"
    return graph(text, {"grid": grid})


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_the_same_pixels_are_taken(padding: str, corners: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for grid in (ties(corners), rng.uniform(-1.3, 1.3, (1, 1, 40, 2)).astype(np.float32)):
        model = build(grid, corners, padding)
        before = outputs(model, {"x": X})["y"]
        assert apply_all(model, tmp_path)["center_grids"] == 1
        np.testing.assert_array_equal(outputs(model, {"x": X})["y"], before)
        assert center_grids.apply(model, tmp_path) == 0


def test_volumes_have_their_axes_in_the_same_order(tmp_path: Path) -> None:
    x = np.arange(60, dtype=np.float32).reshape(1, 1, 3, 4, 5)
    grid = np.random.default_rng(1).uniform(-1, 1, (1, 1, 1, 50, 3)).astype(np.float32)
    text = 'g (float[1,1,3,4,5] x) => (float[1,1,1,1,50] y) { y = GridSample <mode = "nearest"> (x, grid) }'
    model = graph(text, {"grid": grid}, opset=20)
    before = outputs(model, {"x": x})["y"]
    assert center_grids.apply(model, tmp_path) == 1
    np.testing.assert_array_equal(outputs(model, {"x": x})["y"], before)


def test_others_are_left_alone(tmp_path: Path) -> None:
    assert center_grids.apply(build(ties(0), 0, mode="bilinear"), tmp_path) == 0
    body = '{ y = GridSample <mode = "nearest"> (x, grid) }'
    computed = graph(f"g (float[1,1,4,6] x, float[1,1,3,2] grid) => (float[1,1,1,3] y) {body}")
    assert center_grids.apply(computed, tmp_path) == 0


def test_the_chip_takes_the_pixel_above(tmp_path: Path) -> None:
    models = [build(ties(corners), corners) for corners in (0, 1)]
    right = [outputs(model, {"x": X})["y"] for model in models]
    as_is = run_batch(models, [{"x": X}] * 2, tmp_path / "raw")
    for model in models:
        assert center_grids.apply(model, tmp_path) == 1
    found = run_batch(models, [{"x": X}] * 2, tmp_path / "cured")
    for raw, cured, expected in zip(as_is, found, right, strict=True):
        assert np.abs(raw.outputs[0] - expected).max() >= 1, "QNN takes the even one now: look whether this can go"
        np.testing.assert_allclose(cured.outputs[0], expected, rtol=1e-3)
