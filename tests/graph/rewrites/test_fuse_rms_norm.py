from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.norms import fuse_rms_norm
from tests.support.graphs import constant, graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites, without_rewrites

NUMBERS = np.random.default_rng(0)
X = np.asarray(NUMBERS.normal(size=(1, 4, 16)) * 0.05, np.float32)
GAMMA = np.linspace(0.5, 1.5, 16, dtype=np.float32)

SQUARE = "p = Pow (x, two) m = ReduceMean <axes = [-1]> (p) v = Add (m, tiny)"
FORMS = {
    "x / root": f"{SQUARE} r = Sqrt (v) n = Div (x, r) y = Mul (n, gamma)",
    "x * (1 / root), gamma first": f"{SQUARE} r = Sqrt (v) i = Div (one, r) n = Mul (i, x) y = Mul (gamma, n)",
    "reciprocal": f"{SQUARE} r = Sqrt (v) i = Reciprocal (r) n = Mul (x, i) y = Mul (n, gamma)",
    "power -0.5": f"{SQUARE} r = Pow (v, minus_half) n = Mul (x, r) y = Mul (n, gamma)",
    "power 0.5": f"{SQUARE} r = Pow (v, half) n = Div (x, r) y = Mul (n, gamma)",
    "x * x, epsilon first": "p = Mul (x, x) m = ReduceMean <axes = [2]> (p) v = Add (tiny, m)"
    "r = Sqrt (v) n = Div (x, r) y = Mul (n, gamma)",
    "gamma of rank 3": f"{SQUARE} r = Sqrt (v) n = Div (x, r) y = Mul (n, gamma3)",
    "one factor for all": f"{SQUARE} r = Sqrt (v) n = Div (x, r) y = Mul (n, half)",
    "an axis that comes back": "p = Mul (x, x) w = ReduceMean <axes = [-1], keepdims = 0> (p) m = Unsqueeze (w, axis)"
    " v = Add (m, tiny) r = Sqrt (v) n = Div (x, r) y = Mul (n, gamma)",
    "a sum over the width": "p = Mul (x, x) w = ReduceSum (p, axis) m = Div (w, width) v = Add (m, tiny) r = Sqrt (v)"
    " n = Div (x, r) y = Mul (n, gamma)",
    "a sum times 1 / width": "p = Mul (x, x) w = ReduceSum (p, axis) m = Mul (w, part) v = Add (m, tiny) r = Sqrt (v)"
    " i = Reciprocal (r) n = Mul (x, i) y = Mul (n, gamma)",
    "no gamma": f"{SQUARE} r = Sqrt (v) y = Div (x, r)",
}
OTHERS = {
    "another axis": "p = Pow (x, two) m = ReduceMean <axes = [1]> (p) v = Add (m, tiny) r = Sqrt (v) y = Div (x, r)",
    "two axes": "p = Pow (x, two) m = ReduceMean <axes = [1, 2]> (p) v = Add (m, tiny) r = Sqrt (v) y = Div (x, r)",
    "no epsilon": "p = Pow (x, two) m = ReduceMean <axes = [-1]> (p) r = Sqrt (m) y = Div (x, r)",
    "a cube": "p = Pow (x, half) m = ReduceMean <axes = [-1]> (p) v = Add (m, tiny) r = Sqrt (v) y = Div (x, r)",
    "a sum over something else": "p = Mul (x, x) w = ReduceSum (p, axis) m = Div (w, two) v = Add (m, tiny)"
    " r = Sqrt (v) y = Div (x, r)",
    "root over x": f"{SQUARE} r = Sqrt (v) y = Div (r, x)",
    "something else over root": f"{SQUARE} r = Sqrt (v) z = Neg (x) y = Div (z, r)",
    "twice the inverse": f"{SQUARE} r = Sqrt (v) i = Div (two, r) y = Mul (x, i)",
    "the mean is read twice": f"{SQUARE} r = Sqrt (v) n = Div (x, r) y = Add (n, m)",
}


def build(body: str, *, opset: int = 17) -> ModelProto:
    constants: dict[str, ArrayLike] = {
        "two": np.float32(2), "tiny": np.float32(1e-6), "one": np.float32(1), "half": np.float32(0.5),
        "minus_half": np.float32(-0.5), "gamma3": GAMMA[None, None], "gamma": GAMMA, "axis": np.array([-1]),
        "width": np.float32(16), "part": np.float32(1 / 16),
    }  # fmt: skip
    if opset >= 18:
        body = body.replace("ReduceMean <axes = [-1]> (p)", "ReduceMean (p, axis)")
    words = set(body.replace(",", " ").replace("(", " ").replace(")", " ").split())
    used = {name: value for name, value in constants.items() if name in words}
    return graph(f"g (float[1,4,16] x) => (float[1,4,16] y) {{ {body} }}", used, opset=opset)


@pytest.mark.parametrize("form", FORMS)
def test_every_spelling_becomes_one_node(form: str, tmp_path: Path) -> None:
    model = build(FORMS[form])
    before = outputs(model, {"x": X})["y"]

    assert apply_all(model, tmp_path)["fuse_rms_norm"] == 1

    assert operators(model) == {"SimplifiedLayerNormalization": 1}
    assert list(model.graph.node[0].output) == ["y"]
    assert [tuple(tensor.dims) for tensor in model.graph.initializer] == [(16,)]
    np.testing.assert_allclose(outputs(model, {"x": X})["y"], before, rtol=2e-6)
    assert fuse_rms_norm.apply(model, tmp_path) == 0


def test_from_opset_23_it_is_an_operator_of_onnx(tmp_path: Path) -> None:
    model = build(FORMS["reciprocal"], opset=23)
    before = outputs(model, {"x": X})["y"]

    apply_all(model, tmp_path)

    assert operators(model) == {"RMSNormalization": 1}
    np.testing.assert_allclose(outputs(model, {"x": X})["y"], before, rtol=2e-6)


def test_the_result_is_scaled_by_whatever_reads_it_too(tmp_path: Path) -> None:
    body = f"{SQUARE} r = Sqrt (v) n = Div (x, r) s = Mul (n, gamma) y = Add (s, n)"
    model = build(body)
    before = outputs(model, {"x": X})["y"]

    assert apply_all(model, tmp_path)["fuse_rms_norm"] == 1

    assert operators(model) == {"SimplifiedLayerNormalization": 1, "Mul": 1, "Add": 1}
    np.testing.assert_array_equal(constant(model, "n_gamma"), np.ones(16, np.float32))
    np.testing.assert_allclose(outputs(model, {"x": X})["y"], before, rtol=2e-6)


@pytest.mark.parametrize("form", OTHERS)
def test_what_only_looks_like_it_is_left_alone(form: str, tmp_path: Path) -> None:
    model = build(OTHERS[form])
    before = operators(model)

    assert fuse_rms_norm.apply(model, tmp_path) == 0

    assert operators(model) == before


@pytest.mark.slow
def test_the_chip_normalizes_small_activations_rightly(tmp_path: Path) -> None:
    model = build(FORMS["reciprocal"])
    figures = []
    for name, component in (
        ("spelled out", without_rewrites(tmp_path / "spelled out", model)),
        ("fused", with_rewrites(tmp_path / "fused", model)),
    ):
        quantized = component.quantize("all", component.calibrate([{"x": X}]))
        chip = on_chip(quantized, [{"x": X}], tmp_path / name / "out")
        assert chip.context.partitions == 1
        assert not chip.cpu_ops
        figures.append(sqnr_db(on_cpu(quantized, [{"x": X}]), chip.outputs, "y"))

    assert figures[0] < 10, "QNN computes it rightly when spelled out: the rewrite is not needed any more"
    assert figures[1] > 60
