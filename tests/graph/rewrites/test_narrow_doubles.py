from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.graph.rewrites import apply_all, narrow_doubles
from tests.conformance.batches import run_batch
from tests.support.graphs import graph, operators, outputs

X = np.linspace(-3, 3, 8, dtype=np.float32)[None]
CASTS = """g (float[1,8] x) => (float[1,8] y) {
    a = Cast <to = 11> (x) b = Mul (a, c) d = Add (b, low) e = Max (d, x64) y = Cast <to = 1> (e) }"""
CONSTANTS = {"c": np.linspace(1, 2, 8), "low": np.array(0.25), "x64": np.array(-1e300)}


def test_doubles_become_floats(tmp_path: Path) -> None:
    model = graph(CASTS, CONSTANTS)
    before = outputs(model, {"x": X})["y"]

    assert apply_all(model, tmp_path)["narrow_doubles"] > 0

    assert operators(model).get("Cast", 0) <= 1
    assert all(tensor.data_type != 11 for tensor in model.graph.initializer)
    np.testing.assert_allclose(outputs(model, {"x": X})["y"], before, rtol=1e-6)
    assert narrow_doubles.apply(model, tmp_path) == 0


def test_inputs_and_outputs_keep_their_type(tmp_path: Path) -> None:
    model = graph("g (double[1,8] x) => (double[1,8] y) { a = Mul (x, c) y = Tanh (a) }", {"c": CONSTANTS["c"]})
    given = X.astype(np.float64)
    before = outputs(model, {"x": given})["y"]
    narrow_doubles.apply(model, tmp_path)
    assert operators(model) == {"Cast": 2, "Mul": 1, "Tanh": 1}
    after = outputs(model, {"x": given})["y"]
    assert after.dtype == np.float64
    np.testing.assert_allclose(after, before, rtol=1e-5)
    assert narrow_doubles.apply(model, tmp_path) == 0


def test_models_without_doubles_are_left_alone(tmp_path: Path) -> None:
    model = graph("g (float[1,8] x) => (int64[1,8] y) { a = Relu (x) y = Cast <to = 7> (a) }")
    before = model.SerializeToString()
    assert narrow_doubles.apply(model, tmp_path) == 0
    assert model.SerializeToString() == before


def test_what_is_cast_at_the_edges_stays_so(tmp_path: Path) -> None:
    text = """g (double[1,8] x) => (double[1,8] y) {
        s = Cast <to = 1> (x) d = Cast <to = 11> (s) m = Mul (d, c) t = Cast <to = 1> (m) y = Cast <to = 11> (t) }"""
    model = graph(text, {"c": CONSTANTS["c"]})
    given = X.astype(np.float64)
    before = outputs(model, {"x": given})["y"]
    assert narrow_doubles.apply(model, tmp_path) == 3
    assert operators(model) == {"Cast": 2, "Mul": 1}
    after = outputs(model, {"x": given})["y"]
    assert after.dtype == np.float64
    np.testing.assert_allclose(after, before, rtol=1e-5)


def test_an_output_that_others_read_is_narrowed_for_them(tmp_path: Path) -> None:
    text = "g (float[1,8] s) => (double[1,8] y, double[1,8] z) { y = Cast <to = 11> (s) z = Mul (y, c) }"
    model = graph(text, {"c": CONSTANTS["c"]})
    before = outputs(model, {"s": X})
    narrow_doubles.apply(model, tmp_path)
    after = outputs(model, {"s": X})
    assert {each.dtype for each in after.values()} == {np.dtype(np.float64)}
    np.testing.assert_allclose(after["z"], before["z"], rtol=1e-5)
    np.testing.assert_allclose(after["y"], before["y"], rtol=1e-5)


def test_the_bits_of_a_double_are_left_alone(tmp_path: Path) -> None:
    model = graph("g (double[1,8] x) => (int64[1,8] y) { a = Neg (x) y = BitCast <to = 7> (a) }", opset=26)
    before = model.SerializeToString()
    assert narrow_doubles.apply(model, tmp_path) == 0
    assert model.SerializeToString() == before


@pytest.mark.slow
def test_the_chip_takes_no_doubles(tmp_path: Path) -> None:
    cured = graph(CASTS, CONSTANTS)
    narrow_doubles.apply(cured, tmp_path)
    found = run_batch([cured], [{"x": X}], tmp_path / "work")
    np.testing.assert_allclose(found[0].outputs[0], outputs(graph(CASTS, CONSTANTS), {"x": X})["y"], atol=2e-2)
