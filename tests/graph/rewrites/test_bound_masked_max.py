from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.reductions import bound_masked_max
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites

X = np.random.default_rng(0).normal(size=(1, 8, 16)).astype(np.float32)
FEEDS = {"x": X, "mask": np.arange(8).reshape(1, 8, 1) < 5}

LARGEST = "w = Where (mask, x, fill) y = ReduceMax <axes = [1], keepdims = 0> (w)"
FORMS = {
    "values first": (LARGEST, -1e9),
    "filler first": (LARGEST.replace("w = Where (mask, x, fill)", "h = Not (mask) w = Where (h, fill, x)"), -1e9),
    "infinite": (LARGEST, -np.inf),
    "the least": (LARGEST.replace("Max", "Min"), 1e9),
}  # fmt: skip
LEFT_ALONE = {
    "a small filler": (LARGEST, -9999.0),
    "the wrong sign": (LARGEST, 1e9),
    "read twice": (LARGEST.replace("y =", "m =") + "s = ReduceMin <axes = [1], keepdims = 0> (w) y = Add (m, s)", -1e9),
    "a mean": (LARGEST.replace("Max", "Mean"), -1e9),
}  # fmt: skip


def build(body: str, fill: float) -> ModelProto:
    text = f"g (float[1,8,16] x, bool[1,8,1] mask) => (float[1,16] y) {{ {body} }}"
    return graph(text, {"fill": np.float32(fill)})


@pytest.mark.parametrize("form", FORMS)
def test_the_filler_becomes_the_least_value(form: str, tmp_path: Path) -> None:
    model = build(*FORMS[form])
    before = outputs(model, FEEDS)["y"]

    assert apply_all(model, tmp_path)["bound_masked_max"] == 1

    kinds = operators(model)
    assert (kinds["ReduceMax"], kinds["ReduceMin"], kinds["Where"]) == (1, 1, 1)
    assert "fill" not in {tensor.name for tensor in model.graph.initializer}
    np.testing.assert_array_equal(outputs(model, FEEDS)["y"], before)
    assert bound_masked_max.apply(model, tmp_path) == 0


def test_axes_as_an_input(tmp_path: Path) -> None:
    model = graph(
        """g (float[1,8,16] x, bool[1,8,1] mask) => (float[1,16] y) {
            w = Where (mask, x, fill)
            y = ReduceMax <keepdims = 0> (w, axes)
        }""",
        {"fill": np.float32(-1e9), "axes": np.array([1])},
        opset=18,
    )
    before = outputs(model, FEEDS)["y"]
    assert bound_masked_max.apply(model, tmp_path) == 1
    np.testing.assert_array_equal(outputs(model, FEEDS)["y"], before)


@pytest.mark.parametrize("form", LEFT_ALONE)
def test_other_fillers_are_left_alone(form: str, tmp_path: Path) -> None:
    model = build(*LEFT_ALONE[form])
    before = operators(model)
    assert bound_masked_max.apply(model, tmp_path) == 0
    assert operators(model) == before


@pytest.mark.slow
def test_the_chip_pools_the_largest(tmp_path: Path) -> None:
    component = with_rewrites(tmp_path / "net", build(*FORMS["values first"]))
    quantized = component.quantize("all", component.calibrate([FEEDS]))
    chip = on_chip(quantized, [FEEDS], tmp_path / "out")
    assert chip.context.partitions == 1
    assert not chip.cpu_ops
    assert sqnr_db(on_cpu(component.shape["all"], [FEEDS]), chip.outputs, "y") > 60
