from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.activations import divide_one
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites, without_rewrites

X = np.linspace(0.02, 0.1, 64, dtype=np.float32).reshape(1, 64)


@pytest.mark.parametrize(("kind", "dtype"), [("float", np.float32), ("float16", np.float16)])
def test_a_reciprocal_becomes_a_quotient(kind: str, dtype: type[np.floating], tmp_path: Path) -> None:
    model = graph(f"g ({kind}[1,64] x) => ({kind}[1,64] y) {{ a = Reciprocal (x) b = Neg (a) y = Reciprocal (b) }}")
    x = X.astype(dtype)
    before = outputs(model, {"x": x})["y"]

    assert apply_all(model, tmp_path)["divide_one"] == 2

    assert operators(model) == {"Div": 2, "Neg": 1}
    assert {numpy_helper.to_array(one).dtype for one in model.graph.initializer} == {np.dtype(dtype)}
    np.testing.assert_allclose(outputs(model, {"x": x})["y"], before, rtol=1e-6 if dtype == np.float32 else 2e-3)
    assert divide_one.apply(model, tmp_path) == 0


def test_the_name_of_the_one_is_free(tmp_path: Path) -> None:
    model = graph("g (float[1,64] x) => (float[1,64] y) { y_constant = Neg (x) y = Reciprocal (y_constant) }")
    before = outputs(model, {"x": X})["y"]
    divide_one.apply(model, tmp_path)
    np.testing.assert_array_equal(outputs(model, {"x": X})["y"], before)


@pytest.mark.slow
def test_the_chip_divides_rightly(tmp_path: Path) -> None:
    model = graph("g (float[1,64] x) => (float[1,64] y) { y = Reciprocal (x) }")
    figures = []
    for name, component in (
        ("reciprocal", without_rewrites(tmp_path / "reciprocal", model)),
        ("quotient", with_rewrites(tmp_path / "quotient", model)),
    ):
        quantized = component.quantize("all", component.calibrate([{"x": X}]))
        chip = on_chip(quantized, [{"x": X}], tmp_path / name / "out")
        figures.append(sqnr_db(on_cpu(quantized, [{"x": X}]), chip.outputs, "y"))

    assert figures[0] < 10, "QNN computes a Reciprocal rightly now: the rewrite is not needed any more"
    assert figures[1] > 60
