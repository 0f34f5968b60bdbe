from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.integers import compare_far_numbers
from tests.support.graphs import graph, operators, outputs

X = np.array([[0, -1, 65000, -65000, 1e20, -1e20]], np.float32)
COMPARED = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")


@pytest.mark.parametrize("number", [1e20, -1e20])
@pytest.mark.parametrize("operands", ["x, far", "far, x", "m, far"])
@pytest.mark.parametrize("operator", COMPARED)
def test_far_numbers_are_compared_with_the_bound(operator: str, operands: str, number: float, tmp_path: Path) -> None:
    moved = "m = Transpose <perm = [0,1]> (x) " if "m" in operands else ""
    text = f"g (float[1,6] x) => (bool[1,6] y) {{ {moved}y = {operator} ({operands}) }}"
    model = graph(text, {"far": np.float32(number)})
    feed = {"x": X}
    before = outputs(model, feed)["y"]

    assert apply_all(model, tmp_path)["compare_far_numbers"] == 1

    assert operators(model)["Clip"] == 1
    after = outputs(model, feed)["y"]
    # What is equal to the number counts as beyond it, and the other way round.
    same = np.float32(number) == X
    np.testing.assert_array_equal(after[~same], before[~same])
    assert compare_far_numbers.apply(model, tmp_path) == 0


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("y = Greater (x, near)", id="a number that float16 holds"),
        pytest.param("c = Neg (x) y = Greater (c, far)", id="a value that is computed"),
        pytest.param("y = Greater (x, infinite)", id="an infinity"),
    ],
)
def test_left_alone(text: str, tmp_path: Path) -> None:
    numbers = {"near": 65504.0, "far": 1e20, "infinite": np.inf}
    used = {name: np.float32(number) for name, number in numbers.items() if name in text}
    model = graph(f"g (float[1,8] x) => (bool[1,8] y) {{ {text} }}", used)
    assert compare_far_numbers.apply(model, tmp_path) == 0
