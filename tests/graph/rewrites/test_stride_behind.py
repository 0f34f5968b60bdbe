from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.errors import CompileError
from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.convolutions import stride_behind
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites, without_rewrites

HOW = {
    "three by three": ((3, 3), "dilations = [2, 2], strides = [2, 2], pads = [2, 2, 2, 2]"),
    "one axis each": ((2, 3), "dilations = [3, 1], strides = [1, 2]"),
    "unequal": ((2, 3), "dilations = [3, 2], strides = [2, 3], pads = [1, 2, 0, 2]"),
}
LEFT_ALONE = {
    "without strides": ((3, 3), "dilations = [2, 2]"),
    "without dilations": ((3, 3), "strides = [2, 2]"),
    "padded as wide as needed": ((3, 3), 'dilations = [2, 2], strides = [2, 2], auto_pad = "SAME_UPPER"'),
}
FEEDS = {"x": np.random.default_rng(0).normal(size=(1, 4, 12, 17)).astype(np.float32)}


def build(how: tuple[tuple[int, int], str], group: int = 4, made: int = 4) -> ModelProto:
    numbers, (kernel, attributes) = np.random.default_rng(1), how
    weights: dict[str, NDArray[Any]] = {
        "w": numbers.normal(size=(made, 4 // group, *kernel)).astype(np.float32),
        "b": numbers.normal(size=made).astype(np.float32),
    }
    body = f"y = Conv <group = {group}, {attributes}> (x, w, b)"
    return graph(f"g (float[1,4,12,17] x) => (float[1,{made},h,v] y) {{ {body} }}", weights)


@pytest.mark.parametrize("name", HOW)
def test_the_places_that_are_kept_stay_the_same(name: str, tmp_path: Path) -> None:
    model = build(HOW[name])
    before = outputs(model, FEEDS)["y"]

    assert apply_all(model, tmp_path)["stride_behind"] == 1

    assert operators(model) == {"Conv": 1, "Slice": 1}
    np.testing.assert_allclose(outputs(model, FEEDS)["y"], before, rtol=1e-5, atol=1e-5)
    assert stride_behind.apply(model, tmp_path) == 0


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_others_are_left_alone(name: str, tmp_path: Path) -> None:
    assert stride_behind.apply(build(LEFT_ALONE[name]), tmp_path) == 0


def test_one_group_is_left_alone(tmp_path: Path) -> None:
    assert stride_behind.apply(build(HOW["unequal"], group=1), tmp_path) == 0


@pytest.mark.slow
@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize(("group", "made"), [(2, 8), (4, 4), (4, 8)])
@pytest.mark.parametrize("name", HOW)
def test_the_chip_takes_it(name: str, group: int, made: int, rounded: bool, tmp_path: Path) -> None:
    component = with_rewrites(tmp_path / "model", build(HOW[name], group, made))
    model = component.quantize("all", component.calibrate([FEEDS])) if rounded else component.rewrite["all"]

    chip = on_chip(model, [FEEDS], tmp_path / "chip")

    assert chip.cpu_ops == set()
    assert sqnr_db(on_cpu(model, [FEEDS]), chip.outputs, "y") > 60


@pytest.mark.slow
@pytest.mark.parametrize(("group", "made", "rounded"), [(4, 4, False), (4, 4, True), (4, 8, True), (2, 8, True)])
def test_qnn_compiles_none_of_it(group: int, made: int, rounded: bool, tmp_path: Path) -> None:
    component = without_rewrites(tmp_path / "model", build(HOW["unequal"], group, made))
    model = component.quantize("all", component.calibrate([FEEDS])) if rounded else component.rewrite["all"]
    with pytest.raises(CompileError, match="compiled nothing"):
        on_chip(model, [FEEDS], tmp_path / "chip")
