from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.graph.rewrites import compare_one_hots
from tests.conformance.batches import run_batch
from tests.conformance.cases import single
from tests.conformance.formats import in_format
from tests.support.graphs import graph, operators, outputs

PLACES = np.array([[0, 3, 1], [4, 2, 2]])


@pytest.mark.parametrize("axis", [None, -1, 0, 1])
@pytest.mark.parametrize("values", [(0, 1), (0, 3), (-2, 0.5)])
def test_every_place_is_compared(axis: int | None, values: tuple[float, float], tmp_path: Path) -> None:
    how: dict[str, Any] = {} if axis is None else {"axis": axis}
    inputs = [PLACES, np.array(5), np.array(values, np.float32)]
    model, feeds = single("OneHot", inputs, constants=(1, 2), **how)
    before = outputs(model, feeds)["y0"]

    assert compare_one_hots.apply(model, tmp_path) == 1

    assert operators(model)["OneHot"] == 0
    np.testing.assert_array_equal(outputs(model, feeds)["y0"], before)
    assert compare_one_hots.apply(model, tmp_path) == 0


def test_what_lies_beyond_has_no_place(tmp_path: Path) -> None:
    model, _ = single("OneHot", [PLACES, np.array(5), np.array([0, 1], np.float32)], constants=(1, 2))
    compare_one_hots.apply(model, tmp_path)
    assert not outputs(model, {"x0": PLACES + 5})["y0"].any()


def test_integers_and_what_is_computed_are_left_alone(tmp_path: Path) -> None:
    whole, _ = single("OneHot", [PLACES, np.array(5), np.array([0, 1])], constants=(1, 2))
    assert compare_one_hots.apply(whole, tmp_path) == 0
    text = "g (int64[3] i, float[2] v) => (float[3,5] y) { y = OneHot (i, five, v) }"
    assert compare_one_hots.apply(graph(text, {"five": np.array(5)}), tmp_path) == 0


def test_the_chip_takes_none_in_integers(tmp_path: Path) -> None:
    models = []
    for cured in (False, True):
        model, feeds = single("OneHot", [PLACES, np.array(5), np.array([0, 1], np.float32)], constants=(1, 2))
        assert compare_one_hots.apply(model, tmp_path) == 1 if cured else True
        models.append(in_format(model, feeds, "u16", {}))
    before, after = run_batch(models, [feeds] * 2, tmp_path / "work")
    assert "OneHot" in before.on_cpu or before.refused, "QNN takes OneHot now: drop compare_one_hots"
    assert not after.on_cpu
    np.testing.assert_allclose(after.outputs[0], np.eye(5)[PLACES], atol=2e-4)
