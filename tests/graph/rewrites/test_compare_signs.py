from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.integers import compare_signs
from tests.conformance.batches import run_batch
from tests.support.graphs import graph, operators, outputs

X = np.array([[-(2**31) + 1, -70001, -7, -1, 0, 1, 5, 65505, 2**24 + 1, 2**31 - 1]])
TEXT = "g (int32[1,10] x) => (int32[1,10] n, int32[1,10] s) { n = Neg (x) s = Sign (x) }"


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_integers_are_subtracted_and_compared(kind: type[np.integer], tmp_path: Path) -> None:
    model = graph(TEXT.replace("int32", np.dtype(kind).name))
    before = outputs(model, {"x": X.astype(kind)})
    assert apply_all(model, tmp_path)["compare_signs"] == 2
    assert not {"Neg", "Sign"} & operators(model).keys()
    after = outputs(model, {"x": X.astype(kind)})
    for name, values in before.items():
        np.testing.assert_array_equal(after[name], values)
    assert compare_signs.apply(model, tmp_path) == 0


def test_floats_are_left_alone(tmp_path: Path) -> None:
    assert compare_signs.apply(graph(TEXT.replace("int32", "float")), tmp_path) == 0


def test_the_chip_takes_neither(tmp_path: Path) -> None:
    raw, cured = graph(TEXT), graph(TEXT)
    apply_all(cured, tmp_path)
    feed = {"x": X.astype(np.int32)}
    before, after = run_batch([raw, cured], [feed] * 2, tmp_path / "work")
    assert before.on_cpu == ("Neg", "Sign") or before.refused, "QNN takes these of integers now: drop compare_signs"
    assert not after.on_cpu
    for made, expected in zip(after.outputs, (-X, np.sign(X)), strict=True):
        np.testing.assert_array_equal(made, expected)
