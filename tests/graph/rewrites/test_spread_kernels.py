from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.convolutions import spread_kernels
from tests.support.graphs import graph, outputs
from tests.support.on_htp import on_chip, with_rewrites, without_rewrites

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(1, 4, 5, 6)).astype(np.float32)
WEIGHTS = RANDOM.normal(size=(4, 1, 3, 3)).astype(np.float32)
CASES = {
    "one axis": "group = 4, dilations = [2, 1], kernel_shape = [3, 3]",
    "both, strides and pads": "group = 4, dilations = [2, 3], strides = [2, 2], pads = [1, 2, 1, 2]",
    "more at the end": "group = 4, dilations = [3, 2], strides = [2, 2], output_padding = [1, 1]",
    "pads by name": 'group = 4, dilations = [2, 2], strides = [2, 2], auto_pad = "SAME_UPPER"',
}


def build(attributes: str, body: str = "y = ConvTranspose <{}> (a, w)") -> ModelProto:
    text = f"g (float[1,4,5,6] x) => (float[n,c,h,v] y) {{ a = Relu (x)  {body.format(attributes)} }}"
    return graph(text, {"w": WEIGHTS})


@pytest.mark.parametrize("case", CASES)
def test_zeros_stand_where_the_kernel_was_spread(case: str, tmp_path: Path) -> None:
    model = build(CASES[case])
    before = outputs(model, {"x": X})["y"]
    assert apply_all(model, tmp_path)["spread_kernels"] == 1
    np.testing.assert_allclose(outputs(model, {"x": X})["y"], before, rtol=1e-6, atol=1e-6)
    assert spread_kernels.apply(model, tmp_path) == 0


@pytest.mark.parametrize(
    ("attributes", "body"),
    [
        ("group = 4, dilations = [1, 1]", "y = ConvTranspose <{}> (a, w)"),
        ("group = 4, dilations = [2, 2]", "v = Abs (w)  y = ConvTranspose <{}> (a, v)"),
        ("dilations = [2000, 2000]", "y = ConvTranspose <{}> (a, w)"),
    ],
    ids=["no dilations", "computed", "too large"],
)
def test_left_alone(attributes: str, body: str, tmp_path: Path) -> None:
    assert spread_kernels.apply(build(attributes, body), tmp_path) == 0


def test_a_kernel_that_others_read_stays_theirs(tmp_path: Path) -> None:
    model = build(CASES["one axis"], "t = ConvTranspose <{}> (a, w)  o = Conv <group = 4> (x, v)  y = Add (t, t)")
    model.graph.node[2].input[1] = "w"
    before = outputs(model, {"x": X})["y"]
    assert spread_kernels.apply(model, tmp_path) == 1
    assert [node.input[1] for node in model.graph.node if node.op_type == "Conv"] == ["w"]
    np.testing.assert_allclose(outputs(model, {"x": X})["y"], before, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("rewritten", [False, True])
def test_qnn_has_no_dilations_of_a_transposed_convolution(rewritten: bool, tmp_path: Path) -> None:
    model = build(CASES["one axis"])
    component = (with_rewrites if rewritten else without_rewrites)(tmp_path / "model", model)
    ran = on_chip(component.rewrite["all"], [{"x": X}], tmp_path / "chip")
    assert ran.cpu_ops == (set() if rewritten else {"ConvTranspose"})
    np.testing.assert_allclose(ran.outputs[0]["y"], outputs(model, {"x": X})["y"], rtol=0.01, atol=0.02)
