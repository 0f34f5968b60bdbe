from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.activations import fuse_gelu
from tests.support.graphs import graph, operators, outputs

X = np.linspace(-8, 8, 64, dtype=np.float32).reshape(1, 64)
ERF = """e = Erf (d)
         a = Add (e, one)"""
FORMS = {
    "x / sqrt 2, (x * a) / 2": f"d = Div (x, sqrt2) {ERF} m = Mul (x, a) y = Mul (m, half)",
    "x * sqrt 0.5, a first": f"d = Mul (sqrt_half, x) {ERF} m = Mul (a, x) y = Mul (half, m)",
    "(a / 2) * x": f"d = Div (x, sqrt2) {ERF} m = Mul (a, half) y = Mul (x, m)",
    "(x / 2) * a": f"d = Div (x, sqrt2) {ERF} m = Mul (half, x) y = Mul (m, a)",
}
OTHERS = {
    "another factor": f"d = Div (x, sqrt2) {ERF} m = Mul (x, a) y = Mul (m, one)",
    "another scale": f"d = Div (x, one) {ERF} m = Mul (x, a) y = Mul (m, half)",
    "another factor for x": f"z = Neg (x) d = Div (x, sqrt2) {ERF} m = Mul (z, a) y = Mul (m, half)",
    "no last factor": f"d = Div (x, sqrt2) {ERF} y = Mul (x, a)",
    "erf is read twice": f"d = Div (x, sqrt2) {ERF} m = Mul (x, a) n = Mul (m, half) y = Add (n, e)",
}


def build(body: str, *, opset: int = 17) -> ModelProto:
    constants = {
        "sqrt2": np.float32(np.sqrt(2)), "sqrt_half": np.float32(np.sqrt(0.5)),
        "one": np.float32(1), "half": np.float32(0.5),
    }  # fmt: skip
    used = {name: value for name, value in constants.items() if name in body}
    return graph(f"g (float[1,64] x) => (float[1,64] y) {{ {body} }}", used, opset=opset)


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("form", FORMS)
def test_the_exact_gelu_becomes_one_node(form: str, opset: int, tmp_path: Path) -> None:
    model = build(FORMS[form], opset=opset)
    before = outputs(model, {"x": X})["y"]

    assert apply_all(model, tmp_path)["fuse_gelu"] == 1

    (gelu,) = model.graph.node
    assert (gelu.op_type, gelu.domain) == ("Gelu", "com.microsoft" if opset == 17 else "")
    assert gelu.domain in {entry.domain for entry in model.opset_import}
    assert list(gelu.output) == ["y"]
    assert not model.graph.initializer
    assert not model.graph.value_info
    np.testing.assert_allclose(outputs(model, {"x": X})["y"], before, atol=1e-6)
    assert fuse_gelu.apply(model, tmp_path) == 0


@pytest.mark.parametrize("form", OTHERS)
def test_what_only_looks_like_gelu_is_left_alone(form: str, tmp_path: Path) -> None:
    model = build(OTHERS[form])
    before = operators(model)

    assert fuse_gelu.apply(model, tmp_path) == 0

    assert operators(model) == before


def test_several_in_a_row_stay_in_order(tmp_path: Path) -> None:
    text = "".join(
        f"d{i} = Div (x{i}, sqrt2) e{i} = Erf (d{i}) a{i} = Add (e{i}, one)"
        f"m{i} = Mul (x{i}, a{i}) x{i + 1} = Mul (m{i}, half)"
        for i in range(3)
    )
    model = build(text.replace("x0", "x") + " y = Identity (x3)")
    before = outputs(model, {"x": X})["y"]

    assert apply_all(model, tmp_path)["fuse_gelu"] == 3

    assert [node.op_type for node in model.graph.node] == ["Gelu", "Gelu", "Gelu", "Identity"]
    np.testing.assert_allclose(outputs(model, {"x": X})["y"], before, atol=1e-6)
