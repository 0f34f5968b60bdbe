from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.graph.rewrites import apply_all, normalize_along_last_axis
from tests.conformance.batches import run_batch
from tests.conformance.cases import single
from tests.conformance.formats import in_format
from tests.support.graphs import operators, outputs

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(2, 3, 4, 6)).astype(np.float32)


def of(*dims: int) -> NDArray[np.float32]:
    return RANDOM.normal(size=dims).astype(np.float32)


@pytest.mark.parametrize("axis", [0, 1, 2, -2, -4])
@pytest.mark.parametrize("factors", ["a scale", "a scale and a bias", "a scale along the last axis"])
def test_the_axes_are_put_together(axis: int, factors: str, tmp_path: Path) -> None:
    over = X.shape[axis:]
    given = [of(6) if "last" in factors else of(*over), *([of(*over)] if "bias" in factors else [])]
    model, feeds = single("LayerNormalization", [X, *given], constants=(1, 2), axis=axis, epsilon=0.01)
    before = outputs(model, feeds)["y0"]

    assert apply_all(model, tmp_path)["normalize_along_last_axis"] == 1

    assert operators(model) == {"Reshape": 2, "LayerNormalization": 1}
    np.testing.assert_allclose(outputs(model, feeds)["y0"], before, atol=1e-5)
    assert normalize_along_last_axis.apply(model, tmp_path) == 0


@pytest.mark.parametrize("dims", [(1, 1, 4, 6), (1, 4, 6), (4, 1), (1, 1, 1, 6), (1, 1, 1), (1,), ()])
def test_factors_are_spread_over_the_axes(dims: tuple[int, ...], tmp_path: Path) -> None:
    model, feeds = single("LayerNormalization", [X, of(*dims), of(*dims)], constants=(1, 2), axis=2)
    before = outputs(model, feeds)["y0"]
    assert normalize_along_last_axis.apply(model, tmp_path) == 1
    np.testing.assert_allclose(outputs(model, feeds)["y0"], before, atol=1e-5)


@pytest.mark.parametrize("dims", [(2, 3, 4, 6), (2, 1, 1, 1), (3, 1, 1), (1, 3, 4, 6)])
@pytest.mark.parametrize("place", ["scale", "bias"])
def test_factors_that_differ_in_front_of_the_axes_are_left_alone(
    dims: tuple[int, ...], place: str, tmp_path: Path
) -> None:
    factors = [of(*dims)] if place == "scale" else [of(4, 6), of(*dims)]
    model, feeds = single("LayerNormalization", [X, *factors], constants=(1, 2)[: len(factors)], axis=2)
    assert outputs(model, feeds)["y0"].shape == X.shape
    assert normalize_along_last_axis.apply(model, tmp_path) == 0


@pytest.mark.parametrize(
    ("axis", "constants", "results"),
    [(3, (1,), 1), (-1, (1,), 1), (2, (), 1), (2, (1,), 2)],
    ids=["the last", "the last, from the end", "a computed scale", "the mean is read"],
)
def test_others_are_left_alone(axis: int, constants: tuple[int, ...], results: int, tmp_path: Path) -> None:
    scale = of(*X.shape[axis:])
    model, _ = single("LayerNormalization", [X, scale], constants=constants, outputs=results, axis=axis)
    assert normalize_along_last_axis.apply(model, tmp_path) == 0


@pytest.mark.parametrize("number_format", ["fp16", "u16"])
def test_the_chip_takes_one_axis(number_format: str, tmp_path: Path) -> None:
    models, scale = [], of(4, 6)
    for cured in (False, True):
        model, feeds = single("LayerNormalization", [X, scale], constants=(1,), axis=2)
        assert normalize_along_last_axis.apply(model, tmp_path) == 1 if cured else True
        models.append(in_format(model, feeds, number_format, {}))
    before, after = run_batch(models, [feeds] * 2, tmp_path / "work")
    assert "LayerNormalization" in before.on_cpu or before.refused, "QNN normalizes over several axes now: drop this"
    assert "LayerNormalization" not in after.on_cpu
    np.testing.assert_allclose(after.outputs[0], outputs(models[1], feeds)["y0"], atol=0.02)
