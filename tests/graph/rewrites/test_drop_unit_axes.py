from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.reductions import drop_unit_axes
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, sqnr_db, with_rewrites, without_rewrites

X = np.abs(np.random.default_rng(0).normal(size=(1, 32, 1))).astype(np.float32) + 0.1


def reduction(body: str, result: str = "1", *axes: int, opset: int = 17) -> ModelProto:
    text = f"g (float[1,32,1] x) => (float[{result}] y) {{ a = Sqrt (x) {body} }}"
    return graph(text, {"axes": np.array(axes)} if axes else {}, opset=opset)


CASES: dict[str, tuple[ModelProto, int]] = {
    "sum": (reduction("y = ReduceSum <keepdims = 0> (a, axes)", "1", 1, 2), 1),
    "negative axes": (reduction("y = ReduceSum <keepdims = 0> (a, axes)", "1", -1, -2), 1),
    "kept dims": (reduction("y = ReduceSum (a, axes)", "1,1,1", 1, 2), 0),
    "max": (reduction("y = ReduceMax <axes = [1, 2], keepdims = 0> (a)"), 1),
    "max, kept dims": (reduction("y = ReduceMax <axes = [1, 2]> (a)", "1,1,1"), 0),
    "min, axes as an input": (reduction("y = ReduceMin <keepdims = 0> (a, axes)", "1", 1, 2, opset=18), 1),
    "mean over all": (reduction("y = ReduceMean <keepdims = 0> (a)", ""), 1),
}


@pytest.mark.parametrize("case", CASES)
def test_only_the_axes_with_elements_are_reduced(case: str, tmp_path: Path) -> None:
    source, reshapes = CASES[case]
    model = ModelProto.FromString(source.SerializeToString())
    before = outputs(model, {"x": X})["y"]

    assert apply_all(model, tmp_path)["drop_unit_axes"] == 1

    assert operators(model)["Reshape"] == reshapes
    after = outputs(model, {"x": X})["y"]
    assert after.shape == before.shape
    np.testing.assert_array_equal(after, before)
    assert drop_unit_axes.apply(model, tmp_path) == 0


LEFT_ALONE = {
    "an axis with elements": ("1,1", "y = ReduceSum <keepdims = 0> (a, one)"),
    "an axis of one element": ("1,32", "y = ReduceSum <keepdims = 0> (a, two)"),
    "nothing to reduce": ("1,32,1", "y = ReduceSum <noop_with_empty_axes = 1> (a)"),
    "integers": ("1", "n = Cast <to = 7> (a) m = ReduceSum <keepdims = 0> (n, both) y = Cast <to = 1> (m)"),
    "computed axes": ("n", "s = Shape (x) i = Slice (s, zero, one, zero) y = ReduceSum <keepdims = 0> (a, i)"),
}


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_what_is_left_alone(case: str, tmp_path: Path) -> None:
    dims, body = LEFT_ALONE[case]
    constants = {"one": [1], "two": [2], "both": [1, 2], "zero": [0]}
    used = {name: np.array(axes) for name, axes in constants.items() if name in body}
    model = graph(f"g (float[1,32,1] x) => (float[{dims}] y) {{ a = Sqrt (x) {body} }}", used)
    before = model.SerializeToString()
    assert drop_unit_axes.apply(model, tmp_path) == 0
    assert model.SerializeToString() == before


@pytest.mark.parametrize("keeps", [True, False])
def test_htp_computes_it(keeps: bool, tmp_path: Path) -> None:
    body = f"y = ReduceMax <axes = [1, 2], keepdims = {int(keeps)}> (a)"
    model = reduction(body, "1,1,1" if keeps else "1")
    found = {}
    for name, make in (("with", with_rewrites), ("without", without_rewrites)):
        component = make(tmp_path / name, ModelProto.FromString(model.SerializeToString()))
        quantized = component.quantize("all", component.calibrate([{"x": X}]))
        found[name] = on_chip(quantized, [{"x": X}], tmp_path / name / "chip").outputs
    truth = [outputs(model, {"x": X})]
    assert sqnr_db(truth, found["with"], "y") > 60
    assert sqnr_db(truth, found["without"], "y") < 3, "if this fails, the rewrite is no longer needed"
