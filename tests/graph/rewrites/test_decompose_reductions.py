from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.graph.rewrites.reductions import decompose_reductions
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites

OPS = {
    "ReduceSumSquare": {"Mul": 1, "ReduceSum": 1},
    "ReduceL1": {"Abs": 1, "ReduceSum": 1},
    "ReduceLogSum": {"ReduceSum": 1, "Log": 1},
}


def build(op: str, how: str = "<axes = [-1]>", dims: str = "1,12,1", opset: int = 17) -> ModelProto:
    body = f"y = {op} {how} (x)" if "axes)" not in how else f"y = {op} {how}"
    axes = {"axes": np.array([2])} if "axes)" in how else {}
    return graph(f"g (float[1,12,8] x) => (float[{dims}] y) {{ {body} }}", axes, opset=opset)


def values(seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).uniform(0.1, 2, (1, 12, 8)).astype(np.float32)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("how", "dims", "opset"),
    [
        pytest.param("<axes = [-1]>", "1,12,1", 17, id="axes as an attribute"),
        pytest.param("(x, axes)", "1,12,1", 18, id="axes as an input"),
        pytest.param("<axes = [0, 2], keepdims = 0>", "12", 17, id="dropped"),
        pytest.param("", "1,1,1", 17, id="all"),
    ],
)
def test_the_result_stays_what_it_was(op: str, how: str, dims: str, opset: int, tmp_path: Path) -> None:
    model, x = build(op, how, dims, opset), values()
    before = outputs(model, {"x": x})["y"]

    assert decompose_reductions.apply(model, tmp_path) == 1

    assert operators(model) == OPS[op]
    np.testing.assert_allclose(outputs(model, {"x": x})["y"], before, rtol=1e-5, atol=1e-6)
    assert decompose_reductions.apply(model, tmp_path) == 0


def test_others_are_left_alone(tmp_path: Path) -> None:
    assert decompose_reductions.apply(build("ReduceL2"), tmp_path) == 0
    assert decompose_reductions.apply(build("ReduceL1", "<noop_with_empty_axes = 1>", "1,12,8", 18), tmp_path) == 0


@pytest.mark.parametrize("op", OPS)
def test_all_of_it_runs_on_the_chip(op: str, tmp_path: Path) -> None:
    calls = [{"x": values(seed)} for seed in range(3)]
    component = with_rewrites(tmp_path / "model", build(op))

    chip = on_chip(component.quantize("all", component.calibrate(calls)), calls[:1], tmp_path / "on chip")

    assert chip.context.partitions == 1
    assert chip.cpu_ops == set()
    assert sqnr_db(on_cpu(component.ingest, calls[:1]), chip.outputs, "y") > 50


@pytest.mark.parametrize("axis", [None, 1, -2])
def test_a_norm_by_sizes_divides_by_their_sum(axis: int | None, tmp_path: Path) -> None:
    how = "" if axis is None else f", axis = {axis}"
    model = graph(f"g (float[1,12,8] x) => (float[1,12,8] y) {{ y = LpNormalization <p = 1{how}> (x) }}")
    x = values() - 1
    x[:, 3] = 0
    x[:, 5] *= 1e-30
    before = outputs(model, {"x": x})["y"]

    assert decompose_reductions.apply(model, tmp_path) == 1

    assert operators(model) == {"Abs": 1, "ReduceSum": 1, "Max": 1, "Div": 1}
    np.testing.assert_allclose(outputs(model, {"x": x})["y"], before, rtol=1e-6)
    assert decompose_reductions.apply(model, tmp_path) == 0


def test_a_norm_by_squares_is_left_alone(tmp_path: Path) -> None:
    for how in ("", "<p = 2>"):
        model = graph(f"g (float[1,12,8] x) => (float[1,12,8] y) {{ y = LpNormalization {how} (x) }}")
        assert decompose_reductions.apply(model, tmp_path) == 0


def test_rows_of_zeros_stay_zeros_on_the_chip(tmp_path: Path) -> None:
    x = values() - 1
    x[:, 3] = 0
    text = "g (float[1,12,8] x) => (float[1,12,8] y) { y = LpNormalization <p = 1> (x) }"
    component = with_rewrites(tmp_path / "model", graph(text))
    calls = [{"x": x}]
    for number, made in enumerate((component.rewrite["all"], component.quantize("all", component.calibrate(calls)))):
        chip = on_chip(made, calls, tmp_path / f"on chip {number}")
        assert not chip.cpu_ops
        assert not chip.outputs[0]["y"][:, 3].any()
        assert sqnr_db(on_cpu(component.ingest, calls), chip.outputs, "y") > 45
