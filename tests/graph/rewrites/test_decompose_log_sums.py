from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.reductions import decompose_log_sums
from tests.conformance.batches import run_batch
from tests.support.graphs import graph, operators, outputs

X = np.random.default_rng(0).uniform(-200, 200, (1, 8, 16)).astype(np.float32)


def build(node: str, dims: str, opset: int = 17, axes: NDArray[np.int64] | None = None) -> ModelProto:
    constants = {} if axes is None else {"axes": axes}
    return graph(f"g (float[1,8,16] x) => (float[{dims}] y) {{ y = {node} }}", constants, opset=opset)


FORMS = [
    ("LogSoftmax <axis = -1> (x)", "1,8,16", 17, None),
    ("LogSoftmax <axis = 1> (x)", "1,8,16", 13, None),
    ("LogSoftmax (x)", "1,8,16", 21, None),
    ("ReduceLogSumExp <axes = [-1]> (x)", "1,8,1", 17, None),
    ("ReduceLogSumExp <axes = [1, 2], keepdims = 0> (x)", "1", 17, None),
    ("ReduceLogSumExp (x, axes)", "1,1,16", 21, np.array([1])),
    ("ReduceLogSumExp (x)", "1,1,1", 21, None),
]


@pytest.mark.parametrize(("node", "dims", "opset", "axes"), FORMS, ids=[form[0] for form in FORMS])
def test_the_largest_is_taken_away_first(
    node: str, dims: str, opset: int, axes: NDArray[np.int64] | None, tmp_path: Path
) -> None:
    model = build(node, dims, opset, axes)
    before = outputs(model, {"x": X})["y"]

    assert apply_all(model, tmp_path)["decompose_log_sums"] == 1

    assert {"LogSoftmax", "ReduceLogSumExp"}.isdisjoint(operators(model))
    np.testing.assert_allclose(outputs(model, {"x": X})["y"], before, rtol=1e-5, atol=1e-5)
    assert decompose_log_sums.apply(model, tmp_path) == 0


def test_other_forms_are_left_alone(tmp_path: Path) -> None:
    for text, opset in (
        ("g (float[1,8,16] x) => (float[1,8,16] y) { y = LogSoftmax <axis = 1> (x) }", 11),
        ("g (float[1,1,1,8,16] x) => (float[1,1,1,8,16] y) { y = LogSoftmax (x) }", 17),
        ("g (float[1,8,16] x) => (float[1,8,16] y) { y = Softmax (x) }", 17),
    ):
        assert decompose_log_sums.apply(graph(text, opset=opset), tmp_path) == 0


def test_the_chip_loses_values_that_are_far_apart(tmp_path: Path) -> None:
    raw = [build(*FORMS[0][:3]), build(*FORMS[3][:3])]
    cured = [build(*FORMS[0][:3]), build(*FORMS[3][:3])]
    for model in cured:
        apply_all(model, tmp_path)
    found = run_batch(raw + cured, [{"x": X}] * 4, tmp_path / "work")
    for at, model in enumerate(raw):
        right = outputs(model, {"x": X})["y"]
        wrong = np.abs(found[at].outputs[0] - right).max()
        assert wrong > 10, f"QNN computes {model.graph.node[0].op_type} rightly now: drop decompose_log_sums"
        np.testing.assert_allclose(found[2 + at].outputs[0], right, rtol=1e-2, atol=0.2)
