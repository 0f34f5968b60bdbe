from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from pipeline.contracts.scheme import FP16, Rule
from pipeline.errors import CompileError
from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.convolutions import gather_taps
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites, without_rewrites

RANDOM = np.random.default_rng(0)
WEIGHTS = RANDOM.normal(size=(4, 3, 3)).astype(np.float32)
PLANES = RANDOM.normal(size=(4, 3, 3, 2)).astype(np.float32)
ROW, PLANE = RANDOM.normal(size=(1, 3, 1400)).astype(np.float32), RANDOM.normal(size=(1, 3, 12, 900)).astype(np.float32)
CASES = {
    "a row": (ROW, WEIGHTS, "dilations = [300]"),
    "strides and padding": (ROW, WEIGHTS, "dilations = [256], strides = [3], pads = [512, 7]"),
    "strides and dilations": (PLANE[..., :30], PLANES, "dilations = [2, 1], strides = [1, 2], pads = [1, 0, 2, 3]"),
    "a plane": (PLANE, PLANES, "dilations = [2, 600], strides = [1, 2], pads = [1, 0, 2, 30]"),
}


def build(x: np.ndarray, weights: np.ndarray, attributes: str, body: str = "y = Conv <{}> (a, w, b)") -> ModelProto:
    dims, out = ",".join(map(str, x.shape)), ",".join("abcd"[: x.ndim])
    text = f"g (float[{dims}] x) => (float[{out}] y) {{ a = Relu (x)  {body.format(attributes)} }}"
    return graph(text, {"w": weights, "b": np.arange(4, dtype=np.float32)})


@pytest.mark.parametrize("case", CASES)
def test_what_lies_under_the_taps_is_put_side_by_side(case: str, tmp_path: Path) -> None:
    x, weights, attributes = CASES[case]
    model = build(x, weights, attributes)
    before = outputs(model, {"x": x})["y"]
    assert apply_all(model, tmp_path)["gather_taps"] == 1
    assert operators(model)["Slice"] == weights[0, 0].size
    np.testing.assert_allclose(outputs(model, {"x": x})["y"], before, rtol=1e-5, atol=1e-5)
    assert gather_taps.apply(model, tmp_path) == 0


@pytest.mark.parametrize(
    ("weights", "attributes", "body"),
    [
        (WEIGHTS, "dilations = [255]", "y = Conv <{}> (a, w, b)"),
        (RANDOM.normal(size=(4, 3, 600)).astype(np.float32), "dilations = [1]", "y = Conv <{}> (a, w, b)"),
        (RANDOM.normal(size=(4, 3, 10)).astype(np.float32), "dilations = [100]", "y = Conv <{}> (a, w, b)"),
        (WEIGHTS, "dilations = [300]", "v = Abs (w)  y = Conv <{}> (a, v, b)"),
        (WEIGHTS[:3, :1], "dilations = [300], group = 3", "y = Conv <{}> (a, w)"),
        (WEIGHTS, 'dilations = [300], auto_pad = "SAME_UPPER"', "y = Conv <{}> (a, w, b)"),
    ],
    ids=["near", "no dilation", "many taps", "computed", "groups", "padding by name"],
)
def test_left_alone(weights: np.ndarray, attributes: str, body: str, tmp_path: Path) -> None:
    assert gather_taps.apply(build(ROW, weights, attributes, body), tmp_path) == 0


def test_the_chip_takes_a_plane_with_strides_and_dilations(tmp_path: Path) -> None:
    weights = (RANDOM.normal(size=(16, 16, 3, 3)) / 12).astype(np.float32)
    calls = [{"x": RANDOM.normal(size=(1, 16, 20, 20)).astype(np.float32)}]
    text = """g (float[1,16,20,20] x) => (float[1,16,8,8] y) {
        y = Conv <dilations = [2, 2], strides = [2, 2]> (x, w) }"""
    component = with_rewrites(tmp_path / "with", graph(text, {"w": weights}))
    chip = on_chip(component.quantize("all", component.calibrate(calls)), calls, tmp_path / "chip")
    assert not chip.cpu_ops
    assert sqnr_db(on_cpu(component.rewrite["all"], calls), chip.outputs, "y") > 38
    as_it_came = without_rewrites(tmp_path / "without", graph(text, {"w": weights}))
    with pytest.raises(CompileError, match="compiled nothing"):  # when this passes, there is no need any more
        on_chip(as_it_came.quantize("all", as_it_came.calibrate(calls)), calls, tmp_path / "none")


@pytest.mark.parametrize("rules", [(), (Rule(nodes=("*",), precision=FP16),)], ids=["integers", "float"])
def test_the_chip_takes_what_it_had_no_memory_for(rules: tuple[Rule, ...], tmp_path: Path) -> None:
    weights = RANDOM.normal(size=(128, 128, 3)).astype(np.float32) / 20
    x = RANDOM.normal(size=(1, 128, 11596)).astype(np.float32)
    model = graph(
        "g (float[1,128,11596] x) => (float[1,128,7500] y) { y = Conv <dilations = [2048]> (x, w) }", {"w": weights}
    )
    component = with_rewrites(tmp_path, model)
    quantized = component.quantize("all", component.calibrate([{"x": x}]), rules=rules)
    chip = on_chip(quantized, [{"x": x}], tmp_path / "chip")
    assert not chip.cpu_ops
    assert sqnr_db(on_cpu(component.rewrite["all"], [{"x": x}]), chip.outputs, "y") > (60 if rules else 38)


@pytest.mark.slow
def test_without_it_the_compiler_has_no_memory_for_it(tmp_path: Path) -> None:
    """Goes red when QNN takes it, and the rewrite can go."""
    weights = RANDOM.normal(size=(128, 128, 3)).astype(np.float32) / 20
    x = RANDOM.normal(size=(1, 128, 11596)).astype(np.float32)
    model = graph(
        "g (float[1,128,11596] x) => (float[1,128,7500] y) { y = Conv <dilations = [2048]> (x, w) }", {"w": weights}
    )
    component = without_rewrites(tmp_path, model)
    quantized = component.quantize("all", component.calibrate([{"x": x}]))
    with pytest.raises(CompileError, match="QNN compiled nothing"):
        on_chip(quantized, [{"x": x}], tmp_path / "chip")
