from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto

from pipeline.graph.quantization.weights.weight_inputs import choose_rows
from tests.support.graphs import graph, operators, outputs

RANDOM = np.random.default_rng(0)
X = {"x": RANDOM.normal(size=(2, 3, 4)).astype(np.float32)}
TEXT = "g (float[2,3,4] x) => (float[2,3,4] y, float[2,3,5] z) { a = MatMul (x, w) y = Relu (a) z = MatMul (y, v) }"
INPUTS = {"MatMul_0": (2, 3, 4), "MatMul_2": (2, 3, 4)}


def model() -> ModelProto:
    return graph(TEXT, {name: RANDOM.normal(size=(4, size)).astype(np.float32) for name, size in (("w", 4), ("v", 5))})


def rows(*wanted: int) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    return np.isin(np.arange(6), wanted)


def test_wanted_rows_are_what_they_were() -> None:
    changed = model()
    before = outputs(changed, X)
    products = choose_rows(changed, INPUTS)

    made = outputs(changed, {**X, **products.feeds({"MatMul_0": rows(1, 4), "MatMul_2": rows(1, 4)})})

    for name, size in (("y", 4), ("z", 5)):
        found, expected = made[name].reshape(6, size), before[name].reshape(6, size)
        assert made[name].shape == before[name].shape
        np.testing.assert_allclose(found[[1, 4]], expected[[1, 4]], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(found[[0, 2, 3, 5]], np.repeat(found[[1]], 4, axis=0))


@pytest.mark.parametrize("wanted", [{}, {"MatMul_0": rows()}], ids=["nothing is said", "none is wanted"])
def test_all_rows_are_made_otherwise(wanted: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.bool_]]]) -> None:
    changed = model()
    before = outputs(changed, X)
    made = outputs(changed, {**X, **choose_rows(changed, INPUTS).feeds(wanted)})
    np.testing.assert_allclose(made["z"], before["z"], rtol=1e-5, atol=1e-6)


def test_other_products_stay_as_they_are() -> None:
    text = "g (float[1,4] x, float[2,4] v) => (float[1,3] y, float[2,2] z) { y = MatMul (x, w) z = MatMul (v, u) }"
    changed = graph(text, {"w": np.ones((4, 3), np.float32), "u": np.ones((4, 2), np.float32)})
    products = choose_rows(changed, {"MatMul_0": (1, 4)})
    assert operators(changed) == {"MatMul": 2}
    assert products.feeds({"MatMul_0": np.ones(1, np.bool_)}) == {}, "one row is all there is"
