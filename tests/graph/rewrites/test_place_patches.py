from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.convolutions import place_patches
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites

# The picture, a patch, the number of patches, and the attributes.
OVERLAPPING = {
    "padded": ((12, 16), (3, 3), 48, "pads = [1, 1, 1, 1], strides = [2, 2]"),
    "one by one": ((7, 9), (3, 2), 40, ""),
    "dilated": ((11, 9), (3, 2), 35, "dilations = [2, 3], strides = [1, 2], pads = [0, 2, 0, 1]"),
    "left over": ((12, 11), (3, 3), 12, "strides = [3, 3]"),
    "gaps": ((11, 8), (2, 2), 12, "strides = [3, 3]"),
    "a row": ((20,), (4,), 9, "strides = [2], pads = [0, 0]"),
}
SIDE_BY_SIDE = {
    "squares": ((8, 12), (2, 2), 24, "strides = [2, 2]"),
    "columns": ((8, 9), (4, 3), 6, "strides = [4, 3]"),
    "a row": ((20,), (5,), 4, "strides = [5]"),
    "a volume": ((4, 6, 4), (2, 3, 2), 8, "strides = [2, 3, 2]"),
}
VOLUMES = {"overlapping": ((4, 5, 5), (2, 3, 2), 24, "strides = [2, 1, 1]")}

Form = tuple[tuple[int, ...], tuple[int, ...], int, str]


def build(form: Form, batch: int = 2, channels: int = 5) -> tuple[ModelProto, dict[str, NDArray[np.float32]]]:
    picture, patch, count, how = form
    rows = channels * int(np.prod(patch))
    dims = ",".join(map(str, (batch, channels, *picture)))
    text = f"g (float[{batch},{rows},{count}] x) => (float[{dims}] y) {{ y = Col2Im <{how}> (x, picture, patch) }}"
    model = graph(text.replace("<>", ""), {"picture": np.array(picture), "patch": np.array(patch)}, opset=18)
    return model, {"x": np.random.default_rng(0).normal(size=(batch, rows, count)).astype(np.float32)}


@pytest.mark.parametrize("form", [*OVERLAPPING.values(), *VOLUMES.values()])
def test_patches_are_added(form: Form, tmp_path: Path) -> None:
    model, feeds = build(form)
    before = outputs(model, feeds)["y"]

    assert apply_all(model, tmp_path)["place_patches"] == 1

    assert operators(model)["ConvTranspose"] == 1
    np.testing.assert_allclose(outputs(model, feeds)["y"], before, rtol=1e-6, atol=1e-6)
    assert place_patches.apply(model, tmp_path) == 0


@pytest.mark.parametrize("form", SIDE_BY_SIDE.values())
def test_patches_are_put_side_by_side(form: Form, tmp_path: Path) -> None:
    model, feeds = build(form)
    before = outputs(model, feeds)["y"]

    assert place_patches.apply(model, tmp_path) == 1

    assert operators(model) == {"Reshape": 2, "Transpose": 1}
    np.testing.assert_array_equal(outputs(model, feeds)["y"], before)


def test_computed_sizes_are_left_alone(tmp_path: Path) -> None:
    text = "g (float[1,4,6] x, int64[2] picture) => (float[1,1,h,w] y) { y = Col2Im (x, picture, patch) }"
    assert place_patches.apply(graph(text, {"patch": np.array([2, 2])}, opset=18), tmp_path) == 0


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "uint16", "uint8"])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("form", [*OVERLAPPING.values(), *SIDE_BY_SIDE.values()])
def test_the_chip_takes_them(form: Form, batch: int, precision: str, tmp_path: Path) -> None:
    model, feeds = build(form, batch)
    component = with_rewrites(tmp_path / "model", model)
    made = component.rewrite["all"]
    if precision != "fp16":
        made = component.quantize("all", component.calibrate([feeds]), activations=precision)

    chip = on_chip(made, [feeds], tmp_path / "chip")

    assert chip.cpu_ops == set()
    assert sqnr_db(on_cpu(made, [feeds]), chip.outputs, "y") > (60 if precision != "uint8" else 40)
