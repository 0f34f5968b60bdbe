from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.graph.rewrites.activations import separate_swish
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites, without_rewrites

SWISH = "s = Sigmoid (c)  y = Mul (c, s)"


def build(dims: str, body: str = SWISH) -> ModelProto:
    eye = np.eye(int(dims.split(",")[1]), dtype=np.float32).reshape(-1, int(dims.split(",")[1]), 1, 1)
    return graph(f"g (float[{dims}] x) => (float[{dims}] y) {{ c = Conv (x, eye)  {body} }}", {"eye": eye})


def image(dims: str, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    shape = [int(dim) for dim in dims.split(",")]
    return {"x": np.random.default_rng(seed).normal(0, 2, shape).astype(np.float32)}


def test_the_result_stays_what_it_was(tmp_path: Path) -> None:
    model, given = build("1,4,9,9"), image("1,4,9,9")
    before = outputs(model, given)["y"]

    assert separate_swish.apply(model, tmp_path) == 1

    assert operators(model) == {"Conv": 1, "Sigmoid": 1, "Max": 1, "Mul": 1}
    np.testing.assert_array_equal(outputs(model, given)["y"], before)
    assert separate_swish.apply(model, tmp_path) == 0


def test_what_else_reads_the_sigmoid_still_does(tmp_path: Path) -> None:
    model = build("1,4,9,9", "s = Sigmoid (c)  m = Mul (s, c)  y = Add (m, s)")

    assert separate_swish.apply(model, tmp_path) == 1

    (add,) = (node for node in model.graph.node if node.op_type == "Add")
    assert list(add.input) == ["m", "s"]


@pytest.mark.parametrize(
    ("dims", "body"),
    [
        pytest.param("1,4,9,9", "s = Sigmoid (c)  y = Mul (x, s)", id="the gate of another value"),
        pytest.param("1,4,9,9", "s = Sigmoid (c)  y = Mul (s, s)", id="a square"),
    ],
)
def test_left_alone(dims: str, body: str, tmp_path: Path) -> None:
    assert separate_swish.apply(build(dims, body), tmp_path) == 0


@pytest.mark.parametrize("dims", ["1,8,9,9", "1,8,12,10"])
def test_images_of_9_to_12_rows_are_right_on_the_chip(dims: str, tmp_path: Path) -> None:
    calls = [image(dims, seed) for seed in range(3)]
    measured = {}
    for name, make in {"as it was": without_rewrites, "rewritten": with_rewrites}.items():
        component = make(tmp_path / name, build(dims))
        quantized = component.quantize("all", component.calibrate(calls))
        chip = on_chip(quantized, calls[:1], tmp_path / f"{name} on chip")
        measured[name] = sqnr_db(on_cpu(quantized, calls[:1]), chip.outputs, "y")

    assert measured["rewritten"] > 60
    assert measured["as it was"] < 15, "HTP has learned it: is the rewrite still of use?"
