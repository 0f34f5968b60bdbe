from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.graph.rewrites.reductions import sum_along_last_axis
from tests.conformance.batches import run_batch
from tests.conformance.cases import single
from tests.conformance.formats import in_format
from tests.support.graphs import operators, outputs

X = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)


@pytest.mark.parametrize("axis", [0, 1, -2, -3])
@pytest.mark.parametrize("how", [{}, {"exclusive": 1}, {"reverse": 1}], ids=str)
def test_the_axis_is_brought_to_the_end(axis: int, how: dict[str, int], tmp_path: Path) -> None:
    model, feeds = single("CumSum", [X, np.array(axis)], constants=(1,), **how)
    before = outputs(model, feeds)["y0"]

    assert sum_along_last_axis.apply(model, tmp_path) == 1

    assert operators(model) == {"Transpose": 2, "CumSum": 1}
    np.testing.assert_array_equal(outputs(model, feeds)["y0"], before)
    assert sum_along_last_axis.apply(model, tmp_path) == 0


@pytest.mark.parametrize(
    ("x", "axis", "constants"),
    [(X, 2, (1,)), (X, -1, (1,)), (X, 0, ()), (X.astype(np.int32), 0, (1,))],
    ids=["the last", "the last, from the end", "a computed axis", "integers"],
)
def test_others_are_left_alone(
    x: np.ndarray[tuple[int, ...]], axis: int, constants: tuple[int, ...], tmp_path: Path
) -> None:
    model, _ = single("CumSum", [x, np.array(axis)], constants=constants)
    assert sum_along_last_axis.apply(model, tmp_path) == 0


@pytest.mark.slow
def test_the_chip_adds_up_zero_points(tmp_path: Path) -> None:
    models = []
    for cured in (False, True):
        model, feeds = single("CumSum", [X, np.array(1)], constants=(1,))
        if cured:
            assert sum_along_last_axis.apply(model, tmp_path) == 1
        models.append(in_format(model, feeds, "u8", {}))
    right = outputs(models[1], feeds)["y0"]

    wrong, found = run_batch(models, [feeds] * 2, tmp_path / "work")

    np.testing.assert_allclose(found.outputs[0], right, atol=0.1)
    assert np.abs(wrong.outputs[0] - right).max() > 0.5, "QNN adds up rightly now: drop sum_along_last_axis"
