from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.graph.rewrites.choices import select_triangles
from tests.conformance.batches import run_batch
from tests.conformance.cases import single
from tests.conformance.formats import in_format
from tests.support.graphs import graph, operators, outputs

X = np.random.default_rng(0).normal(size=(2, 4, 6)).astype(np.float32)


@pytest.mark.parametrize("kind", [np.float32, np.int32, np.int64, np.bool_])
@pytest.mark.parametrize("upper", [None, 0, 1])
@pytest.mark.parametrize("moved", [None, -1, 0, 2, 9])
def test_a_mask_selects_the_triangle(
    moved: int | None, upper: int | None, kind: type[np.generic], tmp_path: Path
) -> None:
    inputs = [(X > 0 if kind is np.bool_ else X * 9).astype(kind), *([] if moved is None else [np.array(moved)])]
    how = {} if upper is None else {"upper": upper}
    model, feeds = single("Trilu", inputs, constants=(1,), **how)
    before = outputs(model, feeds)["y0"]

    assert select_triangles.apply(model, tmp_path) == 1

    assert operators(model) == {"And" if kind is np.bool_ else "Where": 1}
    np.testing.assert_array_equal(outputs(model, feeds)["y0"], before)
    assert select_triangles.apply(model, tmp_path) == 0


def test_what_is_infinite_outside_of_the_triangle_is_zero(tmp_path: Path) -> None:
    model, _ = single("Trilu", [X])
    select_triangles.apply(model, tmp_path)
    assert not np.tril(outputs(model, {"x0": np.full_like(X, np.inf)})["y0"], -1).any()


def test_a_computed_place_is_left_alone(tmp_path: Path) -> None:
    text = "g (float[4,6] x, int64 k) => (float[4,6] y) { y = Trilu (x, k) }"
    assert select_triangles.apply(graph(text), tmp_path) == 0


def test_the_chip_has_none(tmp_path: Path) -> None:
    for number_format in ("fp16", "u16"):
        models = []
        for cured in (False, True):
            model, feeds = single("Trilu", [X, np.array(1)], constants=(1,))
            assert select_triangles.apply(model, tmp_path) == 1 if cured else True
            models.append(in_format(model, feeds, number_format, {}))
        before, after = run_batch(models, [feeds] * 2, tmp_path / "work")
        assert "Trilu" in before.on_cpu or before.refused, "QNN takes Trilu now: drop select_triangles"
        assert "Where" not in after.on_cpu
        np.testing.assert_allclose(after.outputs[0], np.triu(X, 1), atol=2e-3)
