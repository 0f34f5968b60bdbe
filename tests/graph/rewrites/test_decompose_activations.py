from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all, decompose_activations
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites

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
