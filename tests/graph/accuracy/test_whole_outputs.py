"""Integers that are labels in the float model already, and those that a last rounding makes of fractions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from pipeline.graph.accuracy.figures.measuring import measure
from pipeline.graph.accuracy.figures.output_structure import makeup_of_outputs
from pipeline.graph.accuracy.figures.subjects import choose
from pipeline.graph.accuracy.figures.whole_outputs import without_whole
from pipeline.graph.ir.index import GraphIndex
from tests.support.graphs import graph, save

LABELS = np.array([[1, 2, 3, -4, 50, 6]], np.float32)
FRACTIONS = LABELS + np.float32(0.3)


@pytest.mark.parametrize(
    ("body", "values", "by"),
    [
        ("y = Cast <to = 6> (x)", LABELS, "equality"),
        ("y = Cast <to = 6> (x)", FRACTIONS, "values"),
        ("r = Round (x) y = Cast <to = 6> (r)", FRACTIONS, "values"),
        ("r = Round (x) y = Cast <to = 6> (r)", LABELS, "equality"),
        ("h = Mul (x, two) y = Cast <to = 6> (h)", LABELS, "equality"),
        ("h = Mul (x, half) y = Cast <to = 6> (h)", LABELS, "values"),
        ("c = Ceil (x) s = ReduceSum <keepdims = 1> (c, last) e = Expand (s, six) y = Cast <to = 6> (e)", FRACTIONS,
         "values"),
        ("q = QuantizeLinear (x, one, zero) y = Cast <to = 6> (q)", LABELS, "values"),
    ],
)  # fmt: skip
def test_what_is_whole_before_it_is_rounded_is_compared_for_equality(
    body: str, values: NDArray[np.float32], by: str, tmp_path: Path
) -> None:
    constants: dict[str, ArrayLike] = {
        "half": np.float32(0.5), "two": np.float32(2), "one": np.float32(1), "zero": np.int8(0),
        "last": np.array([1]), "six": np.array([1, 6]),
    }  # fmt: skip
    used = {name: array for name, array in constants.items() if name in body}
    model = graph(f"g (float[1,6] x) => (int32[1,6] y) {{ {body} }}", used, opset=21)
    path = save(model, tmp_path)
    feeds = [{"x": LABELS}, {"x": values}]
    makeup = without_whole(makeup_of_outputs(GraphIndex(model, tmp_path)), path, feeds)
    truth = [{"y": np.trunc(feed["x"]).astype(np.int32)} for feed in feeds]
    subjects = choose(truth, makeup, {}, "net.yaml")
    assert subjects["y"].by == by
    off = [{"y": each["y"] - (each["y"] == 50)} for each in truth]
    found = measure(subjects, ["a", "b"], truth, off)["y"].sqnr_db
    assert found is not None
    assert (found < 10) == (by == "equality"), "49 for 50 is one of six labels, and nearly the same number"
