from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.graph.ir.axis_groups import MOST_DIMS
from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.rewrites import apply_all, merge_dims
from tests.conformance.batches import run_batch
from tests.support.graphs import graph, operators, outputs

RANDOM = np.random.default_rng(0)
INTO = "a = Reshape (x, six)"
FIVE = "a = Reshape (x, five)"
BACK = "y = Reshape (b, rows)"
CONSTANTS: dict[str, NDArray[Any]] = {
    "six": np.array([1, 2, 3, 4, 2, 4]), "eight": np.array([2, 3, 1, 2, 2, 2, 2, 2]), "rows": np.array([1, -1, 8]),
    "deep": np.array([2, 1, 3, 1, 2, 2, 1, 2, 4]), "w": RANDOM.normal(size=(4, 1, 2, 1, 4)).astype(np.float32),
    "w6": RANDOM.normal(size=(1, 2, 1, 4, 1, 4)).astype(np.float32), "two": np.array(2, np.float32),
    "low": np.array(-0.5, np.float32), "gain": np.linspace(0.5, 2, 4, dtype=np.float32), "middle": np.array([1, -2]),
    "from": np.array([0, 1]), "to": np.array([2, 9]), "steps": np.array([1, 1]), "outer": np.array([2, 5]),
    "first": np.array([0]), "second": np.array(1), "places": np.array([[2, -3], [0, 1]]),
    "times": np.array([1, 1, 2, 1, 1, 3]), "minus_two": np.array(-2),
    "repeats": np.array([1, 4, 2]), "five": np.array([2, 3, 4, 2, 4]),
    "w5": RANDOM.normal(size=(3, 1, 2, 1)).astype(np.float32), "odd": np.array([1, 3]), "even": np.array([0, 2, 4]),
    "chosen": RANDOM.random((1, 3, 4, 1, 1)) > 0.5, "outer_two": np.array([0, 4]),
    "slopes": np.array([0.1, 0.2, 0.3, 0.4], np.float32),
}  # fmt: skip
BODIES = {
    "windows": f"{INTO} c = Transpose <perm = [0, 3, 1, 4, 2, 5]> (a) b = Mul (c, w) {BACK}",
    "an operand of as many dims": f"{INTO} c = Add (w6, a) b = Relu (c) {BACK}",
    "numbers": f"{INTO} c = Mul (a, two) b = Clip (c, low) {BACK}",
    "a comparison": f"{INTO} c = Greater (a, w6) d = Neg (a) b = Where (c, a, d) {BACK}",
    "eight apart": "a = Reshape (x, eight) b = Transpose <perm = [5, 0, 4, 1, 7, 3, 2, 6]> (a) y = Reshape (b, rows)",
    "backwards": "a = Reshape (x, eight) b = Transpose (a) y = Reshape (b, rows)",
    "as it was": f"{INTO} c = Transpose <perm = [1, 0, 2, 3, 4, 5]> (a) b = Relu (c) {BACK}",
    "a softmax": f"{INTO} b = Softmax <axis = 3> (a) {BACK}",
    "a softmax of what is one": f"{INTO} c = Softmax <axis = 0> (a) b = Mul (c, w6) {BACK}",
    "a norm": f"{INTO} b = LayerNormalization (a, gain) {BACK}",
    "a sum": f"{INTO} c = ReduceSum <keepdims = 0> (a, middle) d = Transpose <perm = [1, 0, 3, 2]> (c)"
    " y = Squeeze (d, second_axis)",
    "a mean": f"{INTO} c = ReduceMean <axes = [1, 2, 5]> (a) b = Sub (a, c) {BACK}",
    "the largest of all": f"{INTO} c = ReduceMax <keepdims = 0> (a) y = Mul (x, c)",
    "a slice": f"{INTO} b = Slice (a, from, to, middle, steps) {BACK}",
    "parts": f"{INTO} c, d = Split <axis = 1> (a) b = Sub (d, c) {BACK}",
    "put together": f"{INTO} d = Neg (a) b = Concat <axis = 0> (a, d, a) {BACK}",
    "one of them": f"{INTO} c = Gather <axis = 3> (a, second) y = Reshape (c, rows)",
    "some of them": f"{INTO} c = Gather <axis = 2> (a, places) y = Reshape (c, rows)",
    "repeated": f"{INTO} b = Tile (a, times) {BACK}",
    "spread": f"{INTO} c = ReduceSum (a, outer) b = Expand (c, six) {BACK}",
    "other views": f"{INTO} c = Reshape (a, deep) d = Relu (c) e = Unsqueeze (d, first) b = Squeeze (e, first) {BACK}",
    "a running sum": f"{INTO} b = CumSum (a, minus_two) {BACK}",
    "few dims": f"{INTO} c = ReduceSum <keepdims = 0> (a, outer) d = Reshape (c, rows) y = Tile (d, repeats)",
    "four at most": f"{FIVE} c = Neg (a) d = LayerNormalization (c, gain) b = Tanh (d) {BACK}",
    "a choice for every row": f"{FIVE} c = Neg (a) b = Where (chosen, c, a) {BACK}",
    "a choice by what is computed": f"{FIVE} s = ReduceSum (a, outer_two) c = Greater (s, two) b = Where (c, a, w5)"
    f" {BACK}",
    "a slope for each column": f"{FIVE} b = PRelu (a, slopes) {BACK}",
    "four at most, spread": f"{FIVE} s = ReduceSum (a, odd) t = ReduceSum (a, even) b = Max (s, t, w5) {BACK}",
}
CONSTANTS["second_axis"] = np.array([1])
X = {"x": RANDOM.normal(size=(1, 24, 8)).astype(np.float32)}


def model_of(body: str) -> ModelProto:
    return graph(f"g (float[1,24,8] x) => (float[a,b,c] y) {{ {body} }}", CONSTANTS)


def most_dims(model: ModelProto, folder: Path) -> int:
    index = GraphIndex(model, folder)
    constants = [len(tensor.dims) for tensor in model.graph.initializer]
    return max(*(len(shape_of(kind)) for kind in index.types.values()), *constants)


@pytest.mark.parametrize("case", BODIES)
def test_no_value_has_more_than_five_dims(case: str, tmp_path: Path) -> None:
    model = model_of(BODIES[case])
    before = outputs(model, X)["y"]

    assert apply_all(model, tmp_path)["merge_dims"]

    assert most_dims(model, tmp_path) <= MOST_DIMS
    after = outputs(model, X)["y"]
    assert after.shape == before.shape
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)
    assert merge_dims.apply(model, tmp_path) == 0


OVER_ALL = [
    (17, "Mean (a)", "six"), (17, "Sum (a)", "six"), (17, "Sum (a, none)", "six"), (17, "Max (a)", "five"),
    (18, "Mean (a)", "six"), (18, "Sum (a)", "six"), (18, "Max (a)", "six"), (18, "Min (a)", "six"),
    (18, "Max (a)", "five"), (18, "Mean (a, none)", "six"),
]  # fmt: skip


@pytest.mark.parametrize(("opset", "reduction", "dims"), OVER_ALL)
def test_a_reduction_without_axes_is_over_all(opset: int, reduction: str, dims: str, tmp_path: Path) -> None:
    text = f"a = Reshape (x, {dims}) b = Reduce{reduction} c = Reshape (b, first_axis) y = Mul (x, c)"
    constants = CONSTANTS | {
        "none": np.zeros(0, np.int64),
        "first_axis": np.array([1]),
        "six": np.array([2, 3, 2, 2, 2, 4]),
    }
    model = graph(f"g (float[1,24,8] x) => (float[1,24,8] y) {{ {text} }}", constants, opset=opset)
    before = outputs(model, X)["y"]
    assert apply_all(model, tmp_path)["merge_dims"]
    onnx.checker.check_model(model)
    assert most_dims(model, tmp_path) <= MOST_DIMS
    np.testing.assert_allclose(outputs(model, X)["y"], before, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("opset", "kind"), [(17, "Sum"), (18, "Mean"), (20, "Max")])
def test_a_reduction_of_no_axes_is_none(opset: int, kind: str, tmp_path: Path) -> None:
    text = f"{INTO} b = Reduce{kind} <noop_with_empty_axes = 1> (a) {BACK}"
    model = graph(f"g (float[1,24,8] x) => (float[1,24,8] y) {{ {text} }}", CONSTANTS, opset=opset)
    before = outputs(model, X)["y"]
    apply_all(model, tmp_path)
    assert operators(model)[f"Reduce{kind}"] == 1
    np.testing.assert_array_equal(outputs(model, X)["y"], before)


SCALES = [("five", 1), ("five", 2), ("five", 5), ("six", 1), ("six", 2), ("six", 6)]


@pytest.mark.parametrize(("dims", "rank"), SCALES)
def test_a_norm_with_a_scale_of_more_dims(dims: str, rank: int, tmp_path: Path) -> None:
    shape = (*(1,) * (rank - 1), 4)
    gain = {"gain": CONSTANTS["gain"].reshape(shape), "bias": RANDOM.normal(size=shape).astype(np.float32)}
    text = f"a = Reshape (x, {dims}) b = LayerNormalization (a, gain, bias) {BACK}"
    model = graph(f"g (float[1,24,8] x) => (float[a,b,c] y) {{ {text} }}", CONSTANTS | gain)
    before = outputs(model, X)["y"]
    assert apply_all(model, tmp_path)["merge_dims"]
    assert most_dims(model, tmp_path) <= MOST_DIMS
    np.testing.assert_allclose(outputs(model, X)["y"], before, rtol=1e-5, atol=1e-6)


def test_a_transpose_that_tells_five_apart_is_one(tmp_path: Path) -> None:
    text = "a = Reshape (x, six) b = Transpose <perm = [0, 3, 1, 4, 2, 5]> (a) y = Reshape (b, rows)"
    model = model_of(text)
    assert apply_all(model, tmp_path)["merge_dims"] == 3
    assert operators(model) == {"Reshape": 2, "Transpose": 1}


LEFT = {
    "five dims": "a = Reshape (x, five) b = Transpose <perm = [0, 3, 1, 2, 4]> (a) y = Reshape (b, rows)",
    "an operator that is not known": f"{INTO} c = ArgMax <axis = 1> (a) b = Cast <to = 1> (c) {BACK}",
    "a norm with a gain for each row": f"a = Reshape (x, five) b = LayerNormalization (a, rows_of_gain) {BACK}",
    "six told apart": "a = Reshape (x, eight) s = ReduceSum (a, odd) b = Sub (a, s) y = Reshape (b, rows)",
}


@pytest.mark.parametrize("case", LEFT)
def test_left_alone(case: str, tmp_path: Path) -> None:
    constants = CONSTANTS | {"odd": np.array([1, 4, 6]), "rows_of_gain": np.ones((2, 4), np.float32)}
    model = graph(f"g (float[1,24,8] x) => (float[a,b,c] y) {{ {LEFT[case]} }}", constants)
    before, kinds = outputs(model, X)["y"], operators(model)
    merge_dims.apply(model, tmp_path)
    assert {kind: count for kind, count in operators(model).items() if kind != "Reshape"} == {
        kind: count for kind, count in kinds.items() if kind != "Reshape"
    }
    np.testing.assert_array_equal(outputs(model, X)["y"], before)
    assert merge_dims.apply(model, tmp_path) == 0


def test_a_comparison_over_fewer_dims_is_known_to_what_wrote_it(tmp_path: Path) -> None:
    text = """g (float[2,3,2,3,2] x, int64[2,1,2,3,2] at) => (float[2,1,2,3,2] y) {
        far = Sub (at, one) y = GatherElements <axis = 1> (x, far) }"""
    model = graph(text, {"one": np.array(1)})
    assert apply_all(model, tmp_path)["merge_dims"]
    assert not any(apply_all(model, tmp_path).values())


def test_inputs_and_outputs_stay_as_they_are(tmp_path: Path) -> None:
    text = "g (float[1,4,2,2,3,4] x) => (float[1,4,2,2,3,4] y) { a = Relu (x) y = Mul (a, w) }"
    model = graph(text, {"w": CONSTANTS["w"]})
    assert merge_dims.apply(model, tmp_path) == 0


def test_the_chip_takes_what_has_fewer_dims(tmp_path: Path) -> None:
    models = [model_of(body) for body in BODIES.values()]
    whole = [outputs(model, X)["y"] for model in models]
    for model in models:
        apply_all(model, tmp_path)
    raw = model_of(BODIES["windows"])
    (refused,) = run_batch([raw], [X], tmp_path / "raw")
    assert refused.refused or refused.on_cpu, "QNN takes 6 dims now: drop merge_dims"
    for case, truth, found in zip(BODIES, whole, run_batch(models, [X] * len(models), tmp_path / "work"), strict=True):
        assert not found.refused, (case, found.refused)
        assert not found.on_cpu, (case, found.on_cpu)
        np.testing.assert_allclose(found.outputs[0], truth, rtol=5e-3, atol=2e-2, err_msg=case)
