from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.norms import decompose_batch_norm
from tests.support.graphs import graph, operators, outputs

SHAPES = {"[batch, channels]": "1,6", "[batch, channels, frames]": "1,6,9", "image": "1,6,4,5"}


def feed(dims: str) -> NDArray[np.float32]:
    return np.random.default_rng(1).normal(size=[int(dim) for dim in dims.split(",")]).astype(np.float32)


def build(dims: str, attributes: str = "") -> ModelProto:
    numbers = np.random.default_rng(0)
    body = f"y = BatchNormalization {attributes} (x, gamma, beta, mean, var)"
    return graph(
        f"g (float[{dims}] x) => (float[{dims}] y) {{ {body} }}",
        {
            "gamma": numbers.normal(size=6).astype(np.float32), "beta": numbers.normal(size=6).astype(np.float32),
            "mean": numbers.normal(size=6).astype(np.float32), "var": numbers.uniform(0.01, 2, 6).astype(np.float32),
        },
    )  # fmt: skip


@pytest.mark.parametrize("attributes", ["", "<epsilon = 0.1>"])
@pytest.mark.parametrize("shape", SHAPES)
def test_fixed_statistics_become_a_product_and_a_sum(shape: str, attributes: str, tmp_path: Path) -> None:
    model = build(SHAPES[shape], attributes)
    x = feed(SHAPES[shape])
    before = outputs(model, {"x": x})["y"]

    assert apply_all(model, tmp_path)["decompose_batch_norm"] == 1

    assert [node.op_type for node in model.graph.node] == ["Mul", "Add"]
    assert [math.prod(tensor.dims) for tensor in model.graph.initializer] == [6, 6]
    assert [value.name for value in model.graph.value_info] == ["y_mul"]
    np.testing.assert_allclose(outputs(model, {"x": x})["y"], before, rtol=1e-5, atol=1e-6)
    assert decompose_batch_norm.apply(model, tmp_path) == 0


def test_computed_statistics_are_left_alone(tmp_path: Path) -> None:
    model = graph(
        """g (float[1,6,9] x, float[6] v) => (float[1,6,9] y) {
            var = Abs (v)
            y = BatchNormalization (x, ones, ones, ones, var)
        }""",
        {"ones": np.ones(6, np.float32)},
    )
    before = operators(model)

    assert decompose_batch_norm.apply(model, tmp_path) == 0

    assert operators(model) == before


def test_training_mode_is_left_alone(tmp_path: Path) -> None:
    model = graph(
        """g (float[2,6,9] x) => (float[2,6,9] y, float[6] m) {
            y, m, v = BatchNormalization <training_mode = 1> (x, ones, ones, ones, ones)
        }""",
        {"ones": np.ones(6, np.float32)},
    )
    assert decompose_batch_norm.apply(model, tmp_path) == 0
