from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.activations import decompose_softplus
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites, without_rewrites

SOFTPLUS = {"Abs": 1, "Sigmoid": 1, "Log": 1, "Relu": 1, "Sub": 1}
TANGENT = {"Sigmoid": 1, "Sub": 2, "Mul": 1, "Add": 1, "Div": 1}
FORMS = {
    "softplus": ("y = Softplus (x)", SOFTPLUS),
    "its tanh": ("s = Softplus (x)  y = Tanh (s)", TANGENT),
    "mish": ("s = Softplus (x)  t = Tanh (s)  y = Mul (x, t)", TANGENT | {"Mul": 2}),
    "mish as one operator": ("y = Mish (x)", TANGENT | {"Mul": 2}),
}


def build(body: str, dims: str = "1,12,8") -> ModelProto:
    eye = {"eye": np.eye(4, dtype=np.float32).reshape(4, 4, 1, 1)} if "eye" in body else {}
    return graph(f"g (float[{dims}] x) => (float[{dims}] y) {{ {body} }}", eye, opset=18)


def values(dims: str = "1,12,8", seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 4, [int(dim) for dim in dims.split(",")]).astype(np.float32)


@pytest.mark.parametrize("form", FORMS)
def test_the_result_stays_what_it_was(form: str, tmp_path: Path) -> None:
    body, made = FORMS[form]
    model, x = build(body), values()
    x.flat[:6] = (-200, -30, -1e-3, 0, 30, 200)
    before = outputs(model, {"x": x})["y"]

    assert apply_all(model, tmp_path)["decompose_softplus"] == 1

    assert operators(model) == made
    np.testing.assert_allclose(outputs(model, {"x": x})["y"], before, atol=2e-6)
    assert decompose_softplus.apply(model, tmp_path) == 0


def test_a_softplus_that_is_read_twice_serves_both(tmp_path: Path) -> None:
    model, x = build("s = Softplus (x)  t = Tanh (s)  y = Mul (s, t)"), values()
    before = outputs(model, {"x": x})["y"]

    assert apply_all(model, tmp_path)["decompose_softplus"] == 2

    assert operators(model)["Softplus"] == operators(model)["Tanh"] == 0
    np.testing.assert_allclose(outputs(model, {"x": x})["y"], before, rtol=1e-5, atol=2e-6)


def test_another_tanh_is_left_alone(tmp_path: Path) -> None:
    model = build("s = Sigmoid (x)  y = Tanh (s)")
    assert decompose_softplus.apply(model, tmp_path) == 0


@pytest.mark.parametrize(
    ("form", "dims", "wrong_db"), [("softplus", "1,4,9,6", 15), ("softplus", "1,12,8", 55), ("mish", "1,16,24", 10)]
)
def test_it_is_right_on_the_chip(form: str, dims: str, wrong_db: float, tmp_path: Path) -> None:
    # Behind a convolution if it is of an image, so that HTP has rows and columns as it has there.
    body = FORMS[form][0] if dims.count(",") < 3 else f"w = Conv (x, eye)  {FORMS[form][0].replace('(x', '(w')}"
    calls = [{"x": values(dims, seed) / 3} for seed in range(3)]
    measured = {}
    for name, make in {"as it was": without_rewrites, "rewritten": with_rewrites}.items():
        component = make(tmp_path / name, build(body, dims))
        quantized = component.quantize("all", component.calibrate(calls))
        chip = on_chip(quantized, calls[:1], tmp_path / f"{name} on chip")
        measured[name] = sqnr_db(on_cpu(quantized, calls[:1]), chip.outputs, "y")

    assert measured["rewritten"] > 60
    assert measured["as it was"] < wrong_db, "HTP has learned it: is the rewrite still of use?"
