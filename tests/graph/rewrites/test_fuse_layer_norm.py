from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.norms import fuse_layer_norm
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites, without_rewrites

CENTRED = """m = ReduceMean <axes = [-1]> (x)
             d = Sub (x, m)"""
VARIANCE = """p = Pow (d, two)
              v = ReduceMean <axes = [-1]> (p)
              e = Add (v, epsilon)"""
NORMED = "s = Sqrt (e) n = Div (d, s)"
SCALED = "g = Mul (n, gamma) y = Add (g, beta)"
FORMS = {
    "as torch exported it": f"{CENTRED} {VARIANCE} {NORMED} {SCALED}",
    "centred twice": f"{CENTRED} m2 = ReduceMean <axes = [2]> (x) c = Sub (x, m2) {VARIANCE} s = Sqrt (e)"
    f" n = Div (c, s) {SCALED}",
    "a product for the square": f"{CENTRED} p = Mul (d, d) v = ReduceMean <axes = [2]> (p) e = Add (epsilon, v)"
    f" {NORMED} {SCALED}",
    "reciprocal": f"{CENTRED} {VARIANCE} s = Sqrt (e) r = Reciprocal (s) n = Mul (d, r) {SCALED}",
    "one over the root": f"{CENTRED} {VARIANCE} s = Sqrt (e) r = Div (one, s) n = Mul (r, d) {SCALED}",
    "power of -1/2": f"{CENTRED} {VARIANCE} r = Pow (e, minus_half) n = Mul (d, r) {SCALED}",
    "power of 1/2": f"{CENTRED} {VARIANCE} s = Pow (e, half) n = Div (d, s) {SCALED}",
    "a variance of torch's dynamo exporter": f"{CENTRED} m2 = ReduceMean <axes = [2]> (x) c = Sub (x, m2)"
    " p = Mul (c, c) w = ReduceMean <axes = [2], keepdims = 0> (p) v = Reshape (w, kept) e = Add (v, epsilon)"
    f" s = Sqrt (e) r = Reciprocal (s) n = Mul (d, r) {SCALED}",
    "an axis that comes back": f"{CENTRED} p = Mul (d, d) w = ReduceMean <axes = [-1], keepdims = 0> (p)"
    f" v = Unsqueeze (w, last) e = Add (v, epsilon) {NORMED} {SCALED}",
    "a sum for the variance": f"{CENTRED} p = Mul (d, d) w = ReduceSum (p, last) v = Div (w, width)"
    f" e = Add (v, epsilon) {NORMED} {SCALED}",
    "no gamma": f"{CENTRED} {VARIANCE} {NORMED} y = Add (n, beta)",
    "no beta": f"{CENTRED} {VARIANCE} {NORMED} y = Mul (gamma, n)",
    "neither": f"{CENTRED} {VARIANCE} s = Sqrt (e) y = Div (d, s)",
}
OTHERS = {
    "the variance is returned": f"{CENTRED} {VARIANCE} {NORMED} k = Add (n, v) y = Add (k, beta)",
    "epsilon on the root": f"{CENTRED} p = Mul (d, d) v = ReduceMean <axes = [-1]> (p) s = Sqrt (v)"
    f" e = Add (s, epsilon) n = Div (d, e) {SCALED}",
    "the root of something else": f"{CENTRED} {VARIANCE} s = Exp (e) n = Div (d, s) {SCALED}",
    "a third power": f"{CENTRED} {VARIANCE.replace('two', 'one')} {NORMED} {SCALED}",
    "another mean": f"q = Abs (x) m = ReduceMean <axes = [-1]> (q) d = Sub (x, m) {VARIANCE} {NORMED} {SCALED}",
    "another numerator": f"{CENTRED} {VARIANCE} s = Sqrt (e) n = Div (x, s) {SCALED}",
    "a sum of n - 1": f"{CENTRED} p = Mul (d, d) w = ReduceSum (p, last) v = Div (w, one) e = Add (v, epsilon)"
    f" {NORMED} {SCALED}",
    "two axes": f"{CENTRED} {VARIANCE} {NORMED} {SCALED}".replace("[-1]", "[1, 2]"),
}
CONSTANTS: dict[str, NDArray[Any]] = {
    "kept": np.array([1, 6, 1]), "last": np.array([-1]), "width": np.array(8, np.float32),
    "two": np.array(2, np.float32), "one": np.array(1, np.float32), "half": np.array(0.5, np.float32),
    "minus_half": np.array(-0.5, np.float32), "epsilon": np.array(1e-5, np.float32),
    "gamma": np.linspace(0.5, 1.5, 8, dtype=np.float32), "beta": np.linspace(-1, 1, 8, dtype=np.float32),
}  # fmt: skip
CHANNELS_FIRST = """m = ReduceMean <axes = [1]> (x)
    d = Sub (x, m)
    p = Mul (d, d)
    v = ReduceMean <axes = [1]> (p)
    e = Add (v, epsilon)
    s = Sqrt (e)
    n = Div (d, s)
    g = Mul (n, gamma)
    y = Add (g, beta)"""


def build(body: str, constants: dict[str, NDArray[np.float32]] | None = None, dims: str = "1,6,8") -> ModelProto:
    known = CONSTANTS | (constants or {})
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    used = {name: values for name, values in known.items() if name in words}
    return graph(f"g (float[{dims}] x) => (float[{dims}] y) {{ {body} }}", used)


def frames(*dims: int, seed: int = 0) -> NDArray[np.float32]:
    """Values with channels on axis 1, some frames far louder than others."""
    numbers = np.random.default_rng(seed)
    return np.asarray(numbers.normal(size=dims) * np.exp(numbers.uniform(-3, 3, (1, 1, *dims[2:]))), np.float32)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_spelled_out_becomes_one_node(form: str, tmp_path: Path) -> None:
    model, x = build(FORMS[form]), frames(1, 6, 8)
    before = outputs(model, {"x": x})["y"]

    assert apply_all(model, tmp_path)["fuse_layer_norm"] == 1

    (node,) = model.graph.node
    assert node.op_type == "LayerNormalization"
    assert len(node.input) == (2 if form in ("no beta", "neither") else 3)
    np.testing.assert_allclose(outputs(model, {"x": x})["y"], before, rtol=1e-4, atol=1e-5)
    assert fuse_layer_norm.apply(model, tmp_path) == 0


@pytest.mark.parametrize("form", OTHERS)
def test_what_only_looks_like_it_is_left_alone(form: str, tmp_path: Path) -> None:
    model = build(OTHERS[form])
    before = operators(model)

    assert fuse_layer_norm.apply(model, tmp_path) == 0

    assert operators(model) == before


@pytest.mark.parametrize("dims", ["1,8,6", "1,8,3,4"])
def test_channels_first(dims: str, tmp_path: Path) -> None:
    per_channel = (8, *(1 for _ in dims.split(",")[2:]))
    model = build(CHANNELS_FIRST, {name: CONSTANTS[name].reshape(per_channel) for name in ("gamma", "beta")}, dims)
    x = frames(*map(int, dims.split(",")))
    before = outputs(model, {"x": x})["y"]

    assert apply_all(model, tmp_path)["fuse_layer_norm"] == 1

    assert [node.op_type for node in model.graph.node] == ["Transpose", "LayerNormalization", "Transpose"]
    np.testing.assert_allclose(outputs(model, {"x": x})["y"], before, rtol=1e-4, atol=1e-5)


def test_a_factor_along_another_axis_stays(tmp_path: Path) -> None:
    factors = {"gamma": np.linspace(1, 2, 6, dtype=np.float32), "beta": CONSTANTS["beta"].reshape(8, 1)}
    model = build(CHANNELS_FIRST, factors, "1,8,6")
    x = frames(1, 8, 6)
    before = outputs(model, {"x": x})["y"]

    assert apply_all(model, tmp_path)["fuse_layer_norm"] == 1

    assert operators(model)["Mul"] == operators(model)["Add"] == 1
    np.testing.assert_allclose(outputs(model, {"x": x})["y"], before, rtol=1e-4, atol=1e-5)


def test_quiet_frames_among_loud_ones_are_right_on_the_chip(tmp_path: Path) -> None:
    per_channel = {name: np.tile(CONSTANTS[name], 4).reshape(32, 1) for name in ("gamma", "beta")}
    calls = [{"x": frames(1, 32, 20, seed=seed)} for seed in range(4)]
    measured = {}
    for name, make in {"as it was": without_rewrites, "rewritten": with_rewrites}.items():
        component = make(tmp_path / name, build(CHANNELS_FIRST, per_channel, "1,32,20"))
        chip = on_chip(component.quantize("all", component.calibrate(calls)), calls[:1], tmp_path / f"{name} on chip")
        measured[name] = sqnr_db(on_cpu(component.ingest, calls[:1]), chip.outputs, "y")

    assert measured["rewritten"] > 40
    assert measured["as it was"] < 20, "HTP has learned it: is the rewrite still of use?"
