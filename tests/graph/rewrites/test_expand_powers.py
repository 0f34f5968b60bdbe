from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.activations import expand_powers
from tests.conformance.batches import run_batch
from tests.conformance.cases import single
from tests.conformance.formats import in_format
from tests.support.graphs import operators, outputs

RANDOM = np.random.default_rng(0)
X = RANDOM.uniform(0.5, 2, (2, 3, 2, 3, 4)).astype(np.float32)
Y = RANDOM.uniform(-1, 2, (1, 3, 2, 3, 4)).astype(np.float32)


def test_the_side_that_is_smaller_is_expanded(tmp_path: Path) -> None:
    model, feeds = single("Pow", [X, Y])
    before = outputs(model, feeds)["y0"]
    assert apply_all(model, tmp_path)["expand_powers"] == 1
    assert operators(model) == {"Expand": 1, "Pow": 1}
    np.testing.assert_array_equal(outputs(model, feeds)["y0"], before)
    assert expand_powers.apply(model, tmp_path) == 0


def test_a_constant_is_stored_with_the_dims_of_the_result(tmp_path: Path) -> None:
    model, feeds = single("Pow", [X, Y], constants=(1,))
    before = outputs(model, feeds)["y0"]
    assert apply_all(model, tmp_path)["expand_powers"] == 1
    assert operators(model) == {"Pow": 1}
    np.testing.assert_array_equal(outputs(model, feeds)["y0"], before)
    assert expand_powers.apply(model, tmp_path) == 0


@pytest.mark.parametrize(
    ("x", "y", "constants"),
    [(X, X, ()), (X[0], Y[0, :1], ()), (X, Y[:, :1, :1, :1, :1], (1,)), (X, X, (1,))],
)
def test_others_are_left_alone(
    x: np.ndarray[tuple[int, ...]], y: np.ndarray[tuple[int, ...]], constants: tuple[int, ...], tmp_path: Path
) -> None:
    model, _ = single("Pow", [x, y], constants=constants)
    assert expand_powers.apply(model, tmp_path) == 0


@pytest.mark.slow
@pytest.mark.parametrize("number_format", ["fp16", "u16"])
@pytest.mark.parametrize("constants", [(), (1,)], ids=["computed", "by a constant"])
def test_the_chip_takes_sides_of_equal_shape(number_format: str, constants: tuple[int, ...], tmp_path: Path) -> None:
    raw, feeds = single("Pow", [X, Y], constants=constants)
    cured, _ = single("Pow", [X, Y], constants=constants)
    right = outputs(raw, feeds)["y0"]
    expand_powers.apply(cured, tmp_path)
    (as_is,) = run_batch([in_format(raw, feeds, number_format, {})], [feeds], tmp_path / "raw")
    (found,) = run_batch([in_format(cured, feeds, number_format, {})], [feeds], tmp_path / "cured")

    assert as_is.refused or np.abs(as_is.outputs[0] - right).max() > 0.1, "QNN is right now: drop expand_powers"
    np.testing.assert_allclose(found.outputs[0], right, rtol=5e-3, atol=5e-3)
