from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all, merge_scales
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites, without_rewrites

X = np.random.default_rng(0).normal(size=(1, 1, 8, 1)).astype(np.float32)
CONSTANTS: dict[str, NDArray[Any] | np.float32] = {
    "a": np.float32(10), "b": np.geomspace(1e-3, 1, 6, dtype=np.float32).reshape(1, 1, 1, 6),
    "c": np.linspace(1, 2, 8, dtype=np.float32).reshape(1, 1, 8, 1), "huge": np.float32(-3e38),
    "table": np.ones((1, 40, 1, 1), np.float32), "wide": np.ones((1, 1, 1, 40), np.float32),
}  # fmt: skip
MERGED = {
    "Mul, Mul": "t = Mul (x, a)  y = Mul (t, b)",
    "the constant first": "t = Mul (a, x)  y = Mul (b, t)",
    "Div, Mul": "t = Div (x, a)  y = Mul (t, b)",
    "Mul, Div": "t = Mul (x, b)  y = Div (t, a)",
    "two readers": "t = Mul (x, a)  u = Mul (t, b)  v = Div (t, c)  y = Sub (u, v)",
}
OTHERS = {
    "another reader": "t = Mul (x, a)  u = Mul (t, b)  y = Add (t, u)",
    "a constant over the value": "t = Mul (x, a)  u = Div (b, t)  y = Mul (u, x)",
    "a sum in between": "t = Mul (x, a)  u = Add (t, b)  y = Mul (u, b)",
    "a filler": "t = Mul (x, huge)  y = Mul (t, b)",
    "a larger constant": "t = Mul (x, table)  y = Mul (t, wide)",
}


def build(body: str, x: str = "float[1,1,8,1] x", y: str = "float[1,1,8,6] y") -> ModelProto:
    used = {name: value for name, value in CONSTANTS.items() if f"{name})" in body or f"({name}," in body}
    return graph(f"g ({x}) => ({y}) {{ {body} }}", used)


@pytest.mark.parametrize("form", MERGED)
def test_two_constant_factors_become_one(form: str, tmp_path: Path) -> None:
    model = build(MERGED[form])
    before, count = outputs(model, {"x": X})["y"], operators(model)

    merged = apply_all(model, tmp_path)["merge_scales"]

    assert merged == (2 if form == "two readers" else 1)
    assert operators(model).total() == count.total() - 1
    np.testing.assert_allclose(outputs(model, {"x": X})["y"], before, rtol=1e-6)
    assert merge_scales.apply(model, tmp_path) == 0


def test_a_chain_becomes_one(tmp_path: Path) -> None:
    model = build("t = Mul (x, a)  u = Mul (t, c)  v = Div (u, a)  y = Mul (v, b)")
    before = outputs(model, {"x": X})["y"]

    assert apply_all(model, tmp_path)["merge_scales"] == 3

    assert operators(model) == {"Mul": 1}
    np.testing.assert_allclose(outputs(model, {"x": X})["y"], before, rtol=1e-6)


@pytest.mark.parametrize("form", OTHERS)
def test_left_alone(form: str, tmp_path: Path) -> None:
    y = "float[1,40,8,40] y" if form == "a larger constant" else "float[1,1,8,6] y"
    model = build(OTHERS[form], y=y)
    before = operators(model)

    assert merge_scales.apply(model, tmp_path) == 0

    assert operators(model) == before


def test_rotary_positions_are_right_on_the_chip(tmp_path: Path) -> None:
    text = "g (float[1,1,32,1] x) => (float[1,1,32,6] y) { t = Mul (x, a)  y = Mul (t, b) }"
    places = np.arange(32, dtype=np.float32).reshape(1, 1, 32, 1)
    calls = [{"x": places / length} for length in (20, 28, 32)]
    measured = {}
    for name, make in {"as it was": without_rewrites, "rewritten": with_rewrites}.items():
        component = make(tmp_path / name, graph(text, {"a": CONSTANTS["a"], "b": CONSTANTS["b"]}))
        quantized = component.quantize("all", component.calibrate(calls))
        chip = on_chip(quantized, calls[:1], tmp_path / f"{name} on chip")
        measured[name] = sqnr_db(on_cpu(quantized, calls[:1]), chip.outputs, "y")

    assert measured["rewritten"] > 60
    assert measured["as it was"] < 10, "HTP has learned it: is the rewrite still of use?"
