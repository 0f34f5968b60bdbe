from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.graph.rewrites import bound_tanh
from tests.graphs import graph, operators, outputs
from tests.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites, without_rewrites

GATE = "t = Tanh (a)  y = Mul (t, b)"
SHAPES = {"[1, 16, channels]": (1, 16, 24), "[1, channels, 16]": (1, 24, 16), "[1, channels, 1, 16]": (1, 4, 1, 16)}


def dims(shape: tuple[int, ...]) -> str:
    return f"float[{','.join(map(str, shape))}]"


def text(shape: tuple[int, ...], body: str = GATE, b: tuple[int, ...] | None = None, y: tuple[int, ...] = ()) -> str:
    return f"g ({dims(shape)} a, {dims(b or shape)} b) => ({dims(y or shape)} y) {{ {body} }}"


def feeds(*shapes: tuple[int, ...], seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in zip("ab", shapes, strict=True)}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_product_stays_what_it_was(shape: str, tmp_path: Path) -> None:
    model, given = graph(text(SHAPES[shape])), feeds(SHAPES[shape], SHAPES[shape])
    before = outputs(model, given)["y"]

    assert bound_tanh.apply(model, tmp_path) == 1

    assert operators(model) == {"Tanh": 1, "Max": 1, "Mul": 1}
    np.testing.assert_array_equal(outputs(model, given)["y"], before)
    assert bound_tanh.apply(model, tmp_path) == 0


def test_one_channel_that_is_spread_over_many(tmp_path: Path) -> None:
    model = graph(text((1, 1, 32, 1), GATE.replace("Mul", "Add"), (1, 1, 1, 8), (1, 1, 32, 8)))
    assert bound_tanh.apply(model, tmp_path) == 1


def test_a_product_behind_a_move_counts(tmp_path: Path) -> None:
    body = "t = Tanh (a)  r = Relu (t)  u = Transpose <perm = [0, 2, 1]> (r)  y = Mul (u, b)"
    model = graph(text((1, 16, 24), body, (1, 24, 16), (1, 24, 16)))
    assert bound_tanh.apply(model, tmp_path) == 1


@pytest.mark.parametrize(
    ("shape", "body"),
    [
        pytest.param((1, 15, 24), GATE, id="15 places"),
        pytest.param((1, 2, 16, 24), GATE, id="two rows"),
        pytest.param((1, 16, 24), "t = Tanh (a)  y = Sub (t, b)", id="no product"),
    ],
)
def test_left_alone(shape: tuple[int, ...], body: str, tmp_path: Path) -> None:
    model = graph(text(shape, body))
    before = operators(model)

    assert bound_tanh.apply(model, tmp_path) == 0

    assert operators(model) == before


def test_a_gate_over_16_places_is_right_on_the_chip(tmp_path: Path) -> None:
    shape = (1, 16, 24)
    calls = [feeds(shape, shape, seed=seed) for seed in range(4)]
    measured = {}
    for name, make in {"as it was": without_rewrites, "rewritten": with_rewrites}.items():
        component = make(tmp_path / name, graph(text(shape)))
        quantized = component.quantize("all", component.calibrate(calls))
        chip = on_chip(quantized, calls[:1], tmp_path / f"{name} on chip")
        measured[name] = sqnr_db(on_cpu(quantized, calls[:1]), chip.outputs, "y")

    assert measured["rewritten"] > 60
    assert measured["as it was"] < 10, "HTP has learned it: is the rewrite still of use?"
