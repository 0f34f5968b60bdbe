from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.reductions import sum_forwards
from tests.conformance.batches import run_batch
from tests.conformance.cases import single
from tests.conformance.formats import in_format
from tests.support.graphs import operators, outputs

X = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
HOW = [{"reverse": 1}, {"exclusive": 1}, {"reverse": 1, "exclusive": 1}]
MADE = [{"Slice": 2}, {"Slice": 1, "Concat": 1}, {"Slice": 3, "Concat": 1}]


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("kind", [np.float32, np.int32, np.int64])
@pytest.mark.parametrize(("how", "made"), [*zip(HOW, MADE, strict=True)], ids=str)
def test_sums_are_of_what_a_plain_one_adds_up(
    how: dict[str, int], made: dict[str, int], kind: type[np.generic], axis: int, tmp_path: Path
) -> None:
    model, feeds = single("CumSum", [(X * 9).astype(kind), np.array(axis)], constants=(1,), **how)
    before = outputs(model, feeds)["y0"]

    assert sum_forwards.apply(model, tmp_path) == 1

    assert operators(model) == {"CumSum": 1, **made}
    np.testing.assert_allclose(outputs(model, feeds)["y0"], before, rtol=1e-6, atol=1e-6)
    assert sum_forwards.apply(model, tmp_path) == 0


@pytest.mark.parametrize(
    ("x", "constants", "how"),
    [(X, (1,), {}), (X, (), {"reverse": 1}), (X[:, :1], (1,), {"exclusive": 1})],
    ids=["a plain one", "a computed axis", "a single place"],
)
def test_others_are_left_alone(
    x: NDArray[np.float32], constants: tuple[int, ...], how: dict[str, int], tmp_path: Path
) -> None:
    model, _ = single("CumSum", [x, np.array(1)], constants=constants, **how)
    assert sum_forwards.apply(model, tmp_path) == 0


@pytest.mark.parametrize("number_format", ["fp16", "u16", "u8"])
def test_the_chip_takes_none_but_a_plain_one(number_format: str, tmp_path: Path) -> None:
    models = []
    for how in HOW:
        for cured in (False, True):
            model, feeds = single("CumSum", [X, np.array(1)], constants=(1,), **how)
            assert apply_all(model, tmp_path)["sum_forwards"] == 1 if cured else True
            models.append(in_format(model, feeds, number_format, {}))
    expected = [outputs(model, feeds)["y0"] for model in models[1::2]]

    found = run_batch(models, [feeds] * 6, tmp_path / "work")

    for before, after, right in zip(found[::2], found[1::2], expected, strict=True):
        assert "CumSum" in before.on_cpu or before.refused, "QNN takes this CumSum now: drop sum_forwards"
        assert not {"CumSum", "Slice", "Concat"} & set(after.on_cpu)
        np.testing.assert_allclose(after.outputs[0], right, atol=0.1 if number_format == "u8" else 0.01)
