from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.activations import decompose_activations
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites, without_rewrites

X = np.linspace(-8, 8, 96, dtype=np.float32).reshape(1, 12, 8)
FORMS = {
    "celu": ("y = Celu <alpha = 0.5> (x)", {"Mul": 2, "Elu": 1}),
    "celu of 1": ("y = Celu (x)", {"Elu": 1}),
    "softsign": ("y = Softsign (x)", {"Abs": 1, "Add": 1, "Div": 1}),
    "shrink": ("y = Shrink (x)", {"Abs": 1, "Greater": 1, "Where": 1}),
    "shrink with a bias": (
        "y = Shrink <lambd = 2.0, bias = 0.7> (x)",
        {"Abs": 1, "Greater": 1, "Sign": 1, "Mul": 1, "Sub": 1, "Where": 1},
    ),
    "shrink to zero": ("y = Shrink <lambd = 2.0, bias = 2.0> (x)", {"Clip": 1, "Sub": 1}),
}

HYPERBOLIC = {
    "acos": (
        "t = Sin (x) y = Acos (t)",
        {"Sin": 1, "Sub": 2, "Add": 2, "Mul": 2, "Relu": 1, "Sqrt": 1, "Div": 1, "Atan": 1},
    ),
    "asin": (
        "t = Sin (x) y = Asin (t)",
        {"Sin": 1, "Sub": 1, "Add": 2, "Mul": 2, "Relu": 1, "Sqrt": 1, "Div": 1, "Atan": 1},
    ),
    "acosh": ("t = Cosh (x) y = Acosh (t)", {"Mul": 2, "Add": 2, "Exp": 2, "Neg": 1, "Sub": 1, "Sqrt": 1, "Log": 1}),
    "asinh": ("y = Asinh (x)", {"Abs": 1, "Mul": 2, "Add": 2, "Sqrt": 1, "Log": 1, "Sign": 1}),
    "atanh": ("t = Sin (x) y = Atanh (t)", {"Sin": 1, "Add": 1, "Sub": 1, "Div": 1, "Log": 1, "Mul": 1}),
    "cosh": ("y = Cosh (x)", {"Exp": 2, "Neg": 1, "Add": 1, "Mul": 1}),
    "sinh": ("y = Sinh (x)", {"Exp": 2, "Neg": 1, "Sub": 1, "Mul": 1}),
}


def build(body: str) -> ModelProto:
    return graph(f"g (float[1,12,8] x) => (float[1,12,8] y) {{ {body} }}")


@pytest.mark.parametrize("form", FORMS)
def test_the_result_stays_what_it_was(form: str, tmp_path: Path) -> None:
    body, made = FORMS[form]
    model = build(body)
    before = outputs(model, {"x": X})["y"]

    assert apply_all(model, tmp_path)["decompose_activations"] == 1

    assert operators(model) == made
    np.testing.assert_allclose(outputs(model, {"x": X})["y"], before, atol=1e-6)
    assert decompose_activations.apply(model, tmp_path) == 0


@pytest.mark.parametrize("form", HYPERBOLIC)
def test_hyperbolic_functions_stay_what_they_were(form: str, tmp_path: Path) -> None:
    body, made = HYPERBOLIC[form]
    model = build(body)
    before = outputs(model, {"x": X})["y"]

    assert decompose_activations.apply(model, tmp_path) == (2 if form == "acosh" else 1)

    assert operators(model) == made
    np.testing.assert_allclose(outputs(model, {"x": X})["y"], before, rtol=2e-6, atol=2e-6)
    assert decompose_activations.apply(model, tmp_path) == 0


def test_what_qnn_has_is_left_alone(tmp_path: Path) -> None:
    assert decompose_activations.apply(build("e = Elu (x)  y = Selu (e)"), tmp_path) == 0


def test_a_shrink_that_overlaps_itself_is_left_alone(tmp_path: Path) -> None:
    assert decompose_activations.apply(build("y = Shrink <lambd = -1.0> (x)"), tmp_path) == 0


def test_all_of_it_runs_on_the_chip(tmp_path: Path) -> None:
    body = "w = Mul (x, x)  c = Celu <alpha = 0.5> (x)  s = Softsign (w)  a = Add (c, s)"
    body += " h = Shrink <lambd = 2.03, bias = 2.03> (x)  b = Shrink <lambd = 2.03, bias = 1.0> (x)"
    body += " d = Add (h, b) y = Add (a, d)"
    component = with_rewrites(tmp_path / "model", build(body))
    calls = [{"x": X}]

    chip = on_chip(component.quantize("all", component.calibrate(calls)), calls, tmp_path / "on chip")

    assert chip.context.partitions == 1
    assert chip.cpu_ops == set()
    assert sqnr_db(on_cpu(component.ingest, calls), chip.outputs, "y") > 50


@pytest.mark.parametrize("rounded", [False, True])
def test_inverses_and_hyperbolic_functions_run_on_the_chip(rounded: bool, tmp_path: Path) -> None:
    body = """b = Asinh (x) s = Sin (x) u = Mul (s, most) c = Atanh (u) d = Sinh (u) e = Cosh (s) f = Acosh (e)
        g = Add (b, c) h = Add (d, e) i = Add (g, h) y = Add (i, f)"""
    model = graph(f"g (float[1,12,8] x) => (float[1,12,8] y) {{ {body} }}", {"most": np.float32(0.9)})
    component, calls = with_rewrites(tmp_path / "model", model), [{"x": X}]
    made = component.quantize("all", component.calibrate(calls)) if rounded else component.rewrite["all"]

    chip = on_chip(made, calls, tmp_path / "on chip")

    assert chip.cpu_ops == set()
    assert sqnr_db(on_cpu(component.ingest, calls), chip.outputs, "y") > 40


ANGLES = "g (float[1,12,8] x) => (float[1,12,8] y) {{ s = Add (x, one) y = {} (s) }}"
"""Of sines up to 1, which an encoding doesn't end at."""


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("op", ["Asin", "Acos"])
def test_angles_run_on_the_chip(op: str, rounded: bool, tmp_path: Path) -> None:
    calls = [{"x": X / 8 - 1}]
    component = with_rewrites(tmp_path / "model", graph(ANGLES.format(op), {"one": np.float32(1)}))
    made = component.quantize("all", component.calibrate(calls)) if rounded else component.rewrite["all"]

    chip = on_chip(made, calls, tmp_path / "on chip")

    assert chip.cpu_ops == set()
    assert sqnr_db(on_cpu(component.ingest, calls), chip.outputs, "y") > 55, "the root of a rounding, at the end"


@pytest.mark.parametrize("op", ["Asin", "Acos"])
def test_the_chip_loses_angles_without(op: str, tmp_path: Path) -> None:
    calls = [{"x": X / 8 - 1}]
    component = without_rewrites(tmp_path / "model", graph(ANGLES.format(op), {"one": np.float32(1)}))
    chip = on_chip(component.quantize("all", component.calibrate(calls)), calls, tmp_path / "on chip")
    lost = chip.cpu_ops == {op} or sqnr_db(on_cpu(component.ingest, calls), chip.outputs, "y") < 30
    assert lost, "QNN computes it rightly now: drop it here"
