from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.graph.rewrites.integers import compare_one_hots
from tests.conformance.batches import run_batch
from tests.conformance.cases import single
from tests.conformance.formats import in_format
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, with_rewrites

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


@pytest.mark.parametrize("values", [(0, 1), (0, 3), (-2, 5)])
def test_those_of_integers_are_compared(values: tuple[int, int], tmp_path: Path) -> None:
    model, feeds = single("OneHot", [PLACES, np.array(5), np.array(values)], constants=(1, 2))
    before = outputs(model, feeds)["y0"]
    assert compare_one_hots.apply(model, tmp_path) == 1
    after = outputs(model, feeds)["y0"]
    assert after.dtype == before.dtype
    np.testing.assert_array_equal(after, before)


WHOLE = {
    "an output": "g (int64[2,3] i) => (int64[2,3,5] y) { y = OneHot (i, five, pair) }",
    "a sum": "g (int64[2,3] i) => (int64[2,5] y) { h = OneHot (i, five, pair) y = ReduceSum <keepdims = 0> (h, one) }",
    "floats": "g (int64[2,3] i) => (float[2,3,5] y) { h = OneHot (i, five, pair) y = Cast <to = 1> (h) }",
}


@pytest.mark.parametrize("case", WHOLE)
def test_the_chip_takes_integers(case: str, tmp_path: Path) -> None:
    model = graph(WHOLE[case], {"five": np.array(5), "pair": np.array([0, 1]), "one": np.array([1])})
    feeds = [{"i": PLACES}]
    component = with_rewrites(tmp_path / "model", model)
    chip = on_chip(component.rewrite["all"], feeds, tmp_path / "chip")
    assert chip.cpu_ops <= {"Cast"}
    np.testing.assert_array_equal(chip.outputs[0]["y"], on_cpu(component.ingest, feeds)[0]["y"])


def test_what_is_computed_is_left_alone(tmp_path: Path) -> None:
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
