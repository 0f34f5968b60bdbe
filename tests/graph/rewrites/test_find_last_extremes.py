from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.graph.rewrites.reductions import find_last_extremes
from tests.conformance.batches import run_batch
from tests.conformance.cases import single
from tests.support.graphs import operators, outputs

X = np.random.default_rng(0).integers(-2, 3, (2, 3, 9)).astype(np.float32)
OPS = ("ArgMax", "ArgMin")


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_the_first_from_behind_is_the_last(op: str, keepdims: int, axis: int, tmp_path: Path) -> None:
    model, feeds = single(op, [X], axis=axis, keepdims=keepdims, select_last_index=1)
    first, _ = single(op, [X], axis=axis, keepdims=keepdims)
    before = outputs(model, feeds)["y0"]
    assert (before != outputs(first, feeds)["y0"]).any()

    assert find_last_extremes.apply(model, tmp_path) == 1

    assert operators(model) == {"Slice": 1, op: 1, "Sub": 1}
    np.testing.assert_array_equal(outputs(model, feeds)["y0"], before)
    assert find_last_extremes.apply(model, tmp_path) == 0


def test_the_first_is_left_alone(tmp_path: Path) -> None:
    for model, _ in (single("ArgMax", [X]), single("ArgMax", [X], select_last_index=0)):
        assert find_last_extremes.apply(model, tmp_path) == 0


def test_the_chip_finds_only_the_first(tmp_path: Path) -> None:
    models, expected = [], []
    for op in OPS:
        raw, feeds = single(op, [X], axis=2, select_last_index=1)
        cured, _ = single(op, [X], axis=2, select_last_index=1)
        find_last_extremes.apply(cured, tmp_path)
        models += [raw, cured]
        expected.append(outputs(raw, feeds)["y0"])

    found = run_batch(models, [feeds] * 4, tmp_path / "work")

    for op, before, after, right in zip(OPS, found[::2], found[1::2], expected, strict=True):
        assert before.on_cpu == (op,) or before.refused, f"QNN finds the last in {op} now: drop find_last_extremes"
        assert not after.on_cpu
        np.testing.assert_array_equal(after.outputs[0], right)
