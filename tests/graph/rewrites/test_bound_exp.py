from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.activations import bound_exp
from tests.conformance.batches import run_batch
from tests.support.graphs import graph, operators, outputs

EXP = "g (float[1,64] x) => (float[1,64] y) { y = Exp (x) }"
X = np.linspace(-300, 3, 64, dtype=np.float32)[None]


def test_the_source_of_exp_is_bounded(tmp_path: Path) -> None:
    model = graph(EXP)
    before = outputs(model, {"x": X})["y"]

    assert apply_all(model, tmp_path)["bound_exp"] == 1

    assert operators(model) == {"Max": 1, "Exp": 1}
    np.testing.assert_allclose(outputs(model, {"x": X})["y"], before, atol=1e-25)
    assert bound_exp.apply(model, tmp_path) == 0


@pytest.mark.parametrize(
    ("body", "bound", "count"),
    [
        ("a = Max (x, low) y = Exp (a)", -80, 0),
        ("a = Max (x, low) y = Exp (a)", -100, 1),
        ("a = Clip (x, low) y = Exp (a)", -20, 0),
        ("a = Clip (x, , low) y = Exp (a)", 3, 1),
    ],
)
def test_what_is_bounded_is_left_alone(body: str, bound: float, count: int, tmp_path: Path) -> None:
    model = graph(f"g (float[1,64] x) => (float[1,64] y) {{ {body} }}", {"low": np.float32(bound)})
    assert bound_exp.apply(model, tmp_path) == count


def test_five_dims_are_left_alone(tmp_path: Path) -> None:
    model = graph("g (float[1,1,1,1,64] x) => (float[1,1,1,1,64] y) { y = Exp (x) }")
    assert bound_exp.apply(model, tmp_path) == 0


def test_the_chip_takes_exp_of_minus_300_for_131008(tmp_path: Path) -> None:
    bounded = graph(EXP)
    bound_exp.apply(bounded, tmp_path)
    found = run_batch([graph(EXP), bounded], [{"x": X}] * 2, tmp_path / "work")
    right = np.exp(X.astype(np.float64))

    assert np.abs(found[0].outputs[0] - right).max() > 1e5, "QNN computes Exp rightly now: drop bound_exp"
    np.testing.assert_allclose(found[1].outputs[0], right, rtol=2e-2, atol=1e-4)
