from __future__ import annotations

from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.gathers import flatten_gathers
from tests.conformance.batches import run_batch
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, with_rewrites, without_rewrites

X = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype(np.float32)
DEEP = np.random.default_rng(0).normal(size=(2, 3, 2, 2, 3)).astype(np.float32)
SQUARE = np.array([[1, 0], [-1, 1]])


def build(x: np.ndarray, indices: np.ndarray, axis: int, form: str) -> tuple[ModelProto, dict[str, np.ndarray]]:
    """A lookup of `indices` in `x`: with constant indices, with computed ones, or in a constant table."""
    shape = np.take(x, indices, axis).shape
    dims = {name: ",".join(map(str, each)) for name, each in (("x", x.shape), ("i", indices.shape), ("y", shape))}
    values = {"x": x, "i": indices}
    fed = {"constant": ["x"], "computed": ["x", "i"], "table": ["i"]}[form]
    types = {"x": "float", "i": "int64"}
    inputs = ", ".join(f"{types[name]}[{dims[name]}] {name}" for name in fed)
    text = f"g ({inputs}) => (float[{dims['y']}] y) {{ y = Gather <axis = {axis}> (x, i) }}"
    return graph(text, {name: values[name] for name in values if name not in fed}), {name: values[name] for name in fed}


CASES: list[tuple[np.ndarray, np.ndarray, int]] = [(X, SQUARE, axis) for axis in (0, 1, 2, 3, -1)] + [
    (DEEP, np.array([1, 0]), 0), (DEEP, np.array(1), 0), (X[0], SQUARE[None], 1), (X[0][0], SQUARE[None, None], 0),
    (X[0][0][0], SQUARE, 0), (X[0][0][0], SQUARE[None, None], 0),
]  # fmt: skip


@pytest.mark.parametrize("form", ["constant", "computed", "table"])
@pytest.mark.parametrize(("x", "indices", "axis"), CASES)
def test_the_same_elements_are_taken(x: np.ndarray, indices: np.ndarray, axis: int, form: str, tmp_path: Path) -> None:
    model, feeds = build(x, indices, axis, form)
    before = outputs(model, feeds)["y"]
    assert apply_all(model, tmp_path)["flatten_gathers"] == 1
    after = outputs(model, feeds)["y"]
    assert after.shape == before.shape
    np.testing.assert_array_equal(after, before)
    expected = {"Gather": 1, "Reshape": {"constant": 2, "computed": 3, "table": 2}[form]}
    assert {name: count for name, count in operators(model).items() if name in expected} == expected
    assert flatten_gathers.apply(model, tmp_path) == 0


@pytest.mark.parametrize(
    ("x", "indices", "axis"),
    [(X, np.array([1, 0]), 2), (X[0], SQUARE, 1), (DEEP, np.array([1, 0]), 1), (DEEP, SQUARE, 1)],
    ids=["a row", "4 dims", "another axis of 5", "6 dims"],
)
def test_others_are_left_alone(x: np.ndarray, indices: np.ndarray, axis: int, tmp_path: Path) -> None:
    model, _ = build(x, indices, axis, "constant")
    assert flatten_gathers.apply(model, tmp_path) == 0


@pytest.mark.slow
def test_the_chip_takes_the_same_in_float16(tmp_path: Path) -> None:
    made = [
        build(x.astype(np.float16).astype(np.float32), i, axis, form) for x, i, axis in CASES for form in ("constant",)
    ]
    raw = [outputs(model, feeds)["y"] for model, feeds in made]
    feeds = [feed for _, feed in made]
    as_is = run_batch([made[5][0]], feeds[5:6], tmp_path / "raw")
    assert as_is[0].refused, "QNN compiles lookups along the first of 5 dims now: look whether flatten_gathers can go"
    models = [model for model, _ in made]
    for model in models:
        assert flatten_gathers.apply(model, tmp_path) == 1
    for found, right in zip(run_batch(models, feeds, tmp_path / "cured"), raw, strict=True):
        assert (found.refused, found.on_cpu) == ("", ())
        np.testing.assert_allclose(found.outputs[0], right, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_a_lookup_between_transposes_is_compiled(tmp_path: Path) -> None:
    text = """g (float[1,32,4,4] x) => (float[a,b] y) {
        mixed = Conv (x, kernel) means = ReduceMean (mixed, axes) row = Reshape (means, all)
        square = Gather <axis = 0> (row, places) y = Transpose <perm = [1, 0]> (square) }"""
    random = np.random.default_rng(0)
    constants = {
        "kernel": random.normal(size=(32, 32, 1, 1)).astype(np.float32), "axes": np.array([-1, -2]),
        "all": np.array([-1]), "places": random.permutation(32).reshape(4, 8),
    }  # fmt: skip
    model, feeds = graph(text, constants, opset=18), {"x": random.normal(size=(1, 32, 4, 4)).astype(np.float32)}
    with pytest.raises(BrokenProcessPool):
        on_chip(without_rewrites(tmp_path / "raw", model).rewrite["all"], [feeds], tmp_path / "dead")
    cured = on_chip(with_rewrites(tmp_path / "cured", model).rewrite["all"], [feeds], tmp_path / "out")
    np.testing.assert_allclose(cured.outputs[0]["y"], outputs(model, feeds)["y"], rtol=0.01, atol=0.01)
