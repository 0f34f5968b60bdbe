from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import CompileError
from pipeline.graph.rewrites.products import multiply_apart
from pipeline.model import StageInput
from tests.conformance.cases import single
from tests.support.graphs import Arrays, operators, outputs
from tests.support.on_htp import on_chip, with_rewrites, without_rewrites
from tests.support.stage_runs import Component

RANDOM = np.random.default_rng(0)
A, B = (RANDOM.normal(size=(size, 16)).astype(np.float32) for size in (4, 8))
ROWS = RANDOM.normal(size=(4, 8)).astype(np.float32)


@pytest.mark.parametrize("constants", [(), (1,), (0,), (2,), (1, 2)])
@pytest.mark.parametrize("bias", [None, ROWS, ROWS[:, :1]])
@pytest.mark.parametrize("turned", [(0, 1), (1, 0), (1, 1), (0, 0)])
def test_it_is_a_product_and_a_sum(
    turned: tuple[int, int], bias: Any, constants: tuple[int, ...], tmp_path: Path
) -> None:
    inputs = [A.T.copy() if turned[0] else A, B if turned[1] else B.T.copy(), *([] if bias is None else [bias])]
    held = tuple(place for place in constants if place < len(inputs))
    model, feeds = single("Gemm", inputs, constants=held, transA=turned[0], transB=turned[1])
    before = outputs(model, feeds)["y0"]
    expected = 0 if bias is None and 1 in held else 1

    assert multiply_apart.apply(model, tmp_path) == expected

    assert operators(model)["Gemm"] == 1 - expected
    np.testing.assert_allclose(outputs(model, feeds)["y0"], before, atol=1e-5)
    assert multiply_apart.apply(model, tmp_path) == 0


@pytest.mark.parametrize("bias", [ROWS[0], ROWS[:1], ROWS[0, :1]])
def test_a_row_is_a_bias(bias: Any, tmp_path: Path) -> None:
    model, _ = single("Gemm", [A, B, bias], constants=(1, 2), transB=1)
    assert multiply_apart.apply(model, tmp_path) == 0


def test_factors_are_left_alone(tmp_path: Path) -> None:
    model, _ = single("Gemm", [A, B], transB=1, alpha=2.0)
    assert multiply_apart.apply(model, tmp_path) == 0


@pytest.mark.parametrize(("constants", "bias"), [((), None), ((1, 2), ROWS)])
def test_the_chip_takes_no_such_gemm_in_integers(constants: tuple[int, ...], bias: Any, tmp_path: Path) -> None:
    model, feeds = single("Gemm", [A, B, *([] if bias is None else [bias])], constants=constants, transB=1)
    before = _quantized(without_rewrites(tmp_path / "before", model), feeds)
    try:
        left = on_chip(before, [feeds], tmp_path / "before" / "out").cpu_ops
    except CompileError:
        left = {"Gemm"}
    assert "Gemm" in left, "QNN takes it now: drop multiply_apart"
    after = on_chip(_quantized(with_rewrites(tmp_path / "after", model), feeds), [feeds], tmp_path / "after" / "out")
    assert not after.cpu_ops
    expected = A @ B.T + (0 if bias is None else bias)
    assert np.abs(after.outputs[0]["y0"] - expected).max() < 0.02 * np.abs(expected).max()


def _quantized(component: Component, feeds: Arrays) -> StageInput:
    return component.quantize("all", component.calibrate([feeds]), wide_products=True)
