from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.activations import replace_tanh
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites, without_rewrites

GATE = "s = Add (a, one)  t = Tanh (s)  y = Mul (t, b)"
SHAPES = {
    "[1, 16, channels]": (1, 16, 24), "[1, channels, 16]": (1, 24, 16), "[1, channels, 1, 16]": (1, 4, 1, 16),
    "one channel": (1, 1, 32, 1),
}  # fmt: skip


def gate(shape: tuple[int, ...]) -> ModelProto:
    dims = f"float[{','.join(map(str, shape))}]"
    return graph(f"g ({dims} a, {dims} b) => ({dims} y) {{ {GATE} }}", {"one": np.array(1, np.float32)})


def feeds(shape: tuple[int, ...], seed: int = 0) -> dict[str, NDArray[np.float32]]:
    random = np.random.default_rng(seed)
    return {name: random.normal(size=shape).astype(np.float32) for name in "ab"}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_result_stays_what_it_was(shape: str, tmp_path: Path) -> None:
    model, given = gate(SHAPES[shape]), feeds(SHAPES[shape])
    before = outputs(model, given)["y"]

    assert apply_all(model, tmp_path)["replace_tanh"] == 1

    assert operators(model) == {"Add": 1, "Mul": 3, "Sigmoid": 1, "Sub": 1}
    np.testing.assert_allclose(outputs(model, given)["y"], before, atol=1e-6)
    assert replace_tanh.apply(model, tmp_path) == 0


@pytest.mark.parametrize("shape", [(1, 15, 24), (1, 2, 16, 24), (1, 17), (1, 1)])
def test_other_shapes_are_left_alone(shape: tuple[int, ...], tmp_path: Path) -> None:
    assert replace_tanh.apply(gate(shape), tmp_path) == 0


def test_a_gate_over_16_places_is_right_on_the_chip(tmp_path: Path) -> None:
    shape = SHAPES["[1, 16, channels]"]
    calls = [feeds(shape, seed=seed) for seed in range(4)]
    measured = {}
    for name, make in {"as it was": without_rewrites, "rewritten": with_rewrites}.items():
        component = make(tmp_path / name, gate(shape))
        quantized = component.quantize("all", component.calibrate(calls))
        chip = on_chip(quantized, calls[:1], tmp_path / f"{name} on chip")
        measured[name] = sqnr_db(on_cpu(quantized, calls[:1]), chip.outputs, "y")

    assert measured["rewritten"] > 60
    assert measured["as it was"] < 10, "HTP has learned it: is the rewrite still of use?"
