from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all, compute_lengths_in_integers
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, with_rewrites, without_rewrites

FLOAT = "f = Cast <to = 1> (n)"
INTEGER = "y = Cast <to = 7> (r)"
FORMS = {
    "divided": f"{FLOAT} d = Div (f, five) r = Floor (d) {INTEGER}",
    "moved before and after": f"{FLOAT} a = Add (f, minus_one) d = Div (a, five) b = Add (d, one) r = Floor (b)"
    f" {INTEGER}",
    "less something": f"{FLOAT} a = Sub (f, one) d = Div (a, five) b = Sub (d, one) r = Floor (b) {INTEGER}",
    "twice": f"{FLOAT} d = Div (f, five) e = Floor (d) a = Add (e, minus_one) g = Div (a, two) r = Floor (g) {INTEGER}",
    "moved once whole": f"{FLOAT} d = Div (f, five) e = Floor (d) r = Add (one, e) {INTEGER}",
}
OTHERS = {
    "half a step": f"{FLOAT} d = Div (f, half) r = Floor (d) {INTEGER}",
    "a fraction is added": f"{FLOAT} a = Add (f, half) r = Floor (a) {INTEGER}",
    "not rounded": f"{FLOAT} r = Div (f, five) {INTEGER}",
    "rounded up": f"{FLOAT} d = Div (f, five) r = Ceil (d) {INTEGER}",
    "nothing to divide": f"{FLOAT} r = Add (f, one) {INTEGER}",
    "one over a length": f"{FLOAT} d = Div (one, f) r = Floor (d) {INTEGER}",
}
NUMBERS = {"five": 5, "two": 2, "one": 1, "minus_one": -1, "half": 0.5}
LENGTHS = np.array([[-7, -5, -1, 0, 1, 4, 5, 6, 9, 10, 4999, 5000, 5001, 100000]])


def build(body: str) -> ModelProto:
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    constants = {name: np.array(value, np.float32) for name, value in NUMBERS.items() if name in words}
    return graph(f"g (int64[1,14] n) => (int64[1,14] y) {{ {body} }}", constants)


@pytest.mark.parametrize("form", FORMS)
def test_lengths_stay_what_they_were(form: str, tmp_path: Path) -> None:
    model = build(FORMS[form])
    before = outputs(model, {"n": LENGTHS})["y"]

    assert apply_all(model, tmp_path)["compute_lengths_in_integers"] == 1

    assert operators(model)["Floor"] == 0
    np.testing.assert_array_equal(outputs(model, {"n": LENGTHS})["y"], before)
    assert compute_lengths_in_integers.apply(model, tmp_path) == 0


@pytest.mark.parametrize("form", OTHERS)
def test_what_may_not_be_whole_is_left_alone(form: str, tmp_path: Path) -> None:
    model = build(OTHERS[form])
    before = operators(model)

    assert compute_lengths_in_integers.apply(model, tmp_path) == 0

    assert operators(model) == before


def test_a_float_that_was_no_integer_is_left_alone(tmp_path: Path) -> None:
    model = graph(
        "g (float[4] f) => (int64[4] y) { d = Div (f, five) r = Floor (d) y = Cast <to = 7> (r) }",
        {"five": np.array(5, np.float32)},
    )
    assert compute_lengths_in_integers.apply(model, tmp_path) == 0


def test_no_length_is_off_on_the_chip(tmp_path: Path) -> None:
    body = f"{FORMS['divided'].replace('y =', 'c =')} y = Cast <to = 1> (c)"
    text = f"g (int64[1,16] n, float[1,16] x) => (float[1,16] z) {{ {body} z = Add (x, y) }}"
    lengths = np.arange(3001, 3001 + 16 * 7, 7).reshape(1, 16)  # above 2048, where HTP's Mod is wrong
    calls: list[dict[str, NDArray[Any]]] = [
        {"n": lengths + shift, "x": np.full((1, 16), shift, np.float32)} for shift in (0, 3, 5)
    ]
    off = {}
    for name, make in {"as it was": without_rewrites, "rewritten": with_rewrites}.items():
        component = make(tmp_path / name, graph(text, {"five": np.array(5, np.float32)}))
        chip = on_chip(component.quantize("all", component.calibrate(calls)), calls[:1], tmp_path / f"{name} on chip")
        off[name] = np.abs(chip.outputs[0]["z"] - on_cpu(component.ingest, calls[:1])[0]["z"]).max()

    assert off["rewritten"] < 0.5
    assert off["as it was"] < 0.5, "what is cast has steps of whole numbers (`whole_numbers`)"
