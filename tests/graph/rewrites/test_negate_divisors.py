from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.integers import negate_divisors
from tests.conformance.batches import run_batch
from tests.support.graphs import graph, operators, outputs

X = np.arange(-95, 97, 3, dtype=np.int32)[None]
DIV = "g (int32[1,64] x) => (int32[1,64] y) { y = Div (x, n) }"


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("divisor", [2, 16, [4]])
def test_the_sign_is_turned_twice(divisor: object, kind: type[np.integer], tmp_path: Path) -> None:
    model = graph(DIV.replace("int32", np.dtype(kind).name), {"n": np.array(divisor, kind)})
    before = outputs(model, {"x": X.astype(kind)})["y"]

    assert apply_all(model, tmp_path)["negate_divisors"] == 1

    assert operators(model) == {"Div": 1, "Mul": 1}
    np.testing.assert_array_equal(outputs(model, {"x": X.astype(kind)})["y"], before)
    assert negate_divisors.apply(model, tmp_path) == 0


@pytest.mark.parametrize("divisor", [1, 3, -2, [2, 4]])
def test_other_divisors_are_left_alone(divisor: object, tmp_path: Path) -> None:
    n = np.array(divisor, np.int32)
    model = graph(DIV, {"n": n if n.size == 1 else np.resize(n, (1, 64))})
    assert negate_divisors.apply(model, tmp_path) == 0


def test_floats_are_left_alone(tmp_path: Path) -> None:
    model = graph(DIV.replace("int32", "float"), {"n": np.float32(2)})
    assert negate_divisors.apply(model, tmp_path) == 0


def test_the_chip_rounds_quotients_of_powers_of_two_down(tmp_path: Path) -> None:
    raw, cured = graph(DIV, {"n": np.int32(4)}), graph(DIV, {"n": np.int32(4)})
    negate_divisors.apply(cured, tmp_path)
    found = run_batch([raw, cured], [{"x": X}] * 2, tmp_path / "work")
    right = outputs(raw, {"x": X})["y"]

    assert (found[0].outputs[0] != right).any(), "QNN divides rightly now: drop negate_divisors"
    np.testing.assert_array_equal(found[1].outputs[0], right)
