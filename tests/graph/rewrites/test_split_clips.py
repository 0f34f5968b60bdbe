from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.activations import split_clips
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites

X = np.random.default_rng(0).normal(scale=3, size=(1, 4, 8)).astype(np.float32)
SPLIT = {
    "from above zero": ("Clip (a, half, four)", {"Max": 1, "Clip": 1}),
    "to below zero": ("Clip (a, less, minus)", {"Min": 1, "Clip": 1}),
    "a floor": ("Clip (a, half)", {"Max": 1}),
    "a ceiling": ("Clip (a, , minus)", {"Min": 1}),
    "a computed floor": ("Clip (a, given)", {"Max": 1}),
    "a computed ceiling": ("Clip (a, minus, given)", {"Min": 1, "Clip": 1}),
    "both computed": ("Clip (a, given, given)", {"Max": 1, "Min": 1}),
    "a floor, and a ceiling that is computed": ("Clip (a, half, given)", {"Max": 1, "Min": 1}),
}
LEFT_ALONE = {
    "through zero": "Clip (a, minus, four)",
    "from zero": "Clip (a, zero, four)",
    "no lower bound": "Clip (a, , four)",
}
CONSTANTS = {"half": 0.5, "four": 4, "less": -4, "minus": -1, "zero": 0}


def build(body: str) -> ModelProto:
    text = f"g (float[1,4,8] x, float given) => (float[1,4,8] y) {{ a = Neg (x) y = {body} }}"
    return graph(text, {name: np.float32(value) for name, value in CONSTANTS.items()})


@pytest.mark.parametrize("form", SPLIT)
def test_a_bound_beyond_zero_is_taken_out(form: str, tmp_path: Path) -> None:
    body, left = SPLIT[form]
    model = build(body)
    before = outputs(model, {"x": X, "given": np.array(0, np.float32)})["y"]

    assert apply_all(model, tmp_path)["split_clips"] == 1

    assert operators(model) == {"Neg": 1, **left}
    np.testing.assert_array_equal(outputs(model, {"x": X, "given": np.array(0, np.float32)})["y"], before)
    assert split_clips.apply(model, tmp_path) == 0


@pytest.mark.parametrize("form", LEFT_ALONE)
def test_bounds_that_let_zero_pass_are_left_alone(form: str, tmp_path: Path) -> None:
    assert split_clips.apply(build(LEFT_ALONE[form]), tmp_path) == 0


@pytest.mark.slow
def test_the_chip_keeps_to_the_bound(tmp_path: Path) -> None:
    model = graph(
        "g (float[1,4,8] x) => (float[1,4,8] y) { a = Mul (x, x) b = Clip (a, half, four) y = Sqrt (b) }",
        {name: np.float32(value) for name, value in CONSTANTS.items()},
    )
    feeds = [{"x": X}]
    component = with_rewrites(tmp_path / "net", model)
    quantized = component.quantize("all", component.calibrate(feeds))
    chip = on_chip(quantized, feeds, tmp_path / "out")
    assert sqnr_db(on_cpu(component.ingest, feeds), chip.outputs, "y") > 60


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["w8a16", "fp16"])
def test_the_chip_keeps_to_a_bound_that_is_computed(scheme: str, tmp_path: Path) -> None:
    model = graph(
        """g (float[1,4,8] x) => (float[1,4,8] y) {
            a = Mul (x, half) m = ReduceMax <keepdims = 0> (a) low = Sub (m, four) y = Clip (a, low) }""",
        {name: np.float32(value) for name, value in CONSTANTS.items()},
    )
    feeds = [{"x": X}, {"x": X[:, ::-1] * np.float32(0.8)}]
    component = with_rewrites(tmp_path / "net", model)
    built = component.rewrite["all"]
    if scheme == "w8a16":
        built = component.quantize("all", component.calibrate(feeds))
    chip = on_chip(built, feeds, tmp_path / "out")
    assert (chip.context.partitions, chip.cpu_ops) == (1, set())
    assert sqnr_db(on_cpu(component.ingest, feeds), chip.outputs, "y") > 60
