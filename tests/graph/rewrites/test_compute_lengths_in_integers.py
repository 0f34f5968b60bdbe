from __future__ import annotations

import re
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
BY = "g = Cast <to = 1> (k)"
INTEGER = "y = Cast <to = 7> (r)"
FORMS = {
    "divided": f"{FLOAT} d = Div (f, five) r = Floor (d) {INTEGER}",
    "rounded up": f"{FLOAT} d = Div (f, five) r = Ceil (d) {INTEGER}",
    "not rounded": f"{FLOAT} r = Div (f, five) {INTEGER}",
    "by a negative": f"{FLOAT} d = Div (f, minus_three) r = Floor (d) {INTEGER}",
    "by several": f"{FLOAT} d = Div (f, several) r = Floor (d) {INTEGER}",
    "moved before and after": f"{FLOAT} a = Add (f, minus_one) d = Div (a, five) b = Add (d, one) r = Floor (b)"
    f" {INTEGER}",
    "less something": f"{FLOAT} a = Sub (f, one) d = Div (a, five) b = Sub (d, one) r = Floor (b) {INTEGER}",
    "moved and not rounded": f"{FLOAT} d = Div (f, five) r = Add (two, d) {INTEGER}",
    "twice": f"{FLOAT} d = Div (f, five) e = Floor (d) a = Add (e, minus_one) g = Div (a, two) r = Floor (g) {INTEGER}",
    "moved once whole": f"{FLOAT} d = Div (f, five) e = Floor (d) r = Add (one, e) {INTEGER}",
    "turned": f"{FLOAT} a = Neg (f) d = Div (a, five) e = Floor (d) r = Neg (e) {INTEGER}",
    "in other dims": f"{FLOAT} d = Div (f, five) e = Floor (d) t = Transpose <perm = [1, 0]> (e)"
    f" r = Transpose <perm = [1, 0]> (t) {INTEGER}",
    "computed": f"{FLOAT} {BY} d = Div (f, g) r = Floor (d) {INTEGER}",
    "computed, rounded up": f"{FLOAT} {BY} d = Div (f, g) r = Ceil (d) {INTEGER}",
    "computed, not rounded": f"{FLOAT} {BY} r = Div (f, g) {INTEGER}",
    "computed, cut": f"{FLOAT} {BY} d = Div (f, g) a = Abs (d) b = Floor (a) s = Sign (d) r = Mul (b, s) {INTEGER}",
    "computed, moved": f"{FLOAT} {BY} d = Div (f, g) r = Sub (d, five) {INTEGER}",
    "by a quotient": f"{FLOAT} {BY} d = Div (g, five) e = Floor (d) m = Sub (e, five) a = Div (f, m) r = Floor (a)"
    f" {INTEGER}",
    "a rest": f"{FLOAT} {BY} d = Div (f, g) e = Floor (d) w = Mul (g, e) r = Sub (f, w) {INTEGER}",
    "a rest of a cut": f"{FLOAT} d = Div (f, five) a = Abs (d) b = Floor (a) s = Sign (d) t = Mul (b, s)"
    f" w = Mul (t, five) r = Sub (f, w) {INTEGER}",
    "read as a float": f"{FLOAT} d = Div (f, five) e = Floor (d) r = Mul (e, half) {INTEGER}",
    "divided again as a float": f"{FLOAT} d = Div (f, five) e = Floor (d) h = Div (e, two) r = Exp (h) {INTEGER}",
}
OTHERS = {
    "half a step": f"{FLOAT} d = Div (f, half) r = Floor (d) {INTEGER}",
    "a fraction is added": f"{FLOAT} a = Add (f, half) r = Floor (a) {INTEGER}",
    "rounded to the nearest": f"{FLOAT} d = Div (f, five) r = Round (d) {INTEGER}",
    "nothing to divide": f"{FLOAT} r = Add (f, one) {INTEGER}",
    "taken from a whole one": f"{FLOAT} d = Div (f, five) a = Sub (one, d) r = Floor (a) {INTEGER}",
    "a product": f"{FLOAT} {BY} a = Mul (f, g) d = Div (a, five) r = Floor (d) {INTEGER}",
    "by nothing": f"{FLOAT} d = Div (f, with_zero) r = Floor (d) s = Max (r, minus_one) b = Min (s, five)"
    " y = Cast <to = 7> (b)",
    "infinite as a float": f"{FLOAT} {BY} d = Div (f, g) e = Floor (d) a = Min (e, five) r = Max (a, minus_one)"
    f" {INTEGER}",
}
COUNT = 256
LENGTHS = np.array([[-7, -5, -1, 0, 1, 4, 5, 6, 9, 10, 4999, 5000, 5001, 100000]])
SIZES = np.array([[3, -5, 7, 5, -2, 4, 5, -6, 8, -10, 7, -40, 41, -32000]])
NUMBERS: dict[str, float | list[int]] = {
    "five": 5, "two": 2, "one": 1, "minus_one": -1, "minus_three": -3, "half": 0.5,
    "several": [1, 2, -4, 8, 3, -7, 5] * 2, "with_zero": [1, 0] * 7,
}  # fmt: skip


def build(body: str) -> ModelProto:
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    constants = {name: np.array(value, np.float32) for name, value in NUMBERS.items() if name in words}
    return graph(f"g (int64[1,14] n, int64[1,14] k) => (int64[1,14] y) {{ {body} }}", constants)


def _quotients(seed: int) -> dict[str, NDArray[Any]]:
    """Lengths of which two of three are a multiple of their size, or next to one."""
    numbers = np.random.default_rng(seed)
    sizes = numbers.integers(13, 50, (1, COUNT)) * numbers.choice([-1, 1], (1, COUNT))
    lengths = numbers.integers(-200, 200, (1, COUNT)) * sizes + numbers.integers(-1, 2, (1, COUNT))
    lengths[:, ::3] = numbers.integers(-4000, 4000, lengths[:, ::3].shape)
    return {"n": np.clip(lengths, -4000, 4000), "k": sizes}


def _renamed(body: str, number: int) -> str:
    """The nodes of a form, with values of their own."""
    return re.sub(r"\b([a-z])\b(?= =|[,)])", lambda found: _own(found.group(1), number), body)


def _own(name: str, number: int) -> str:
    return name if name in ("n", "k") else f"{name}_{number}"


@pytest.mark.parametrize("form", FORMS)
def test_lengths_stay_what_they_were(form: str, tmp_path: Path) -> None:
    model = build(FORMS[form])
    feeds = {"n": np.clip(LENGTHS, -50, 50) if "Exp" in FORMS[form] else LENGTHS, "k": SIZES}
    before = outputs(model, feeds)["y"]

    assert apply_all(model, tmp_path)["compute_lengths_in_integers"] == 1

    assert operators(model)["Floor"] == operators(model)["Ceil"] == 0
    np.testing.assert_array_equal(outputs(model, feeds)["y"], before)
    assert compute_lengths_in_integers.apply(model, tmp_path) == 0


@pytest.mark.parametrize("form", OTHERS)
def test_what_may_not_be_whole_is_left_alone(form: str, tmp_path: Path) -> None:
    model = build(OTHERS[form])
    before = operators(model)

    assert compute_lengths_in_integers.apply(model, tmp_path) == 0

    assert operators(model) == before


def test_a_divisor_of_zero_gives_some_number(tmp_path: Path) -> None:
    model = build(FORMS["computed"])
    sizes = np.where(np.arange(14) % 3 == 0, 0, SIZES)
    before = outputs(model, {"n": LENGTHS, "k": sizes})["y"]

    apply_all(model, tmp_path)  # an integer by 0 would end this process

    after = outputs(model, {"n": LENGTHS, "k": sizes})["y"]
    np.testing.assert_array_equal(after[sizes != 0], before[sizes != 0])


def test_a_deep_sum_of_lengths(tmp_path: Path) -> None:
    sums = " ".join(f"s{number + 1} = Add (s{number}, one)" for number in range(2000))
    model = build(f"{FLOAT} d = Div (f, five) s0 = Floor (d) {sums} y = Cast <to = 7> (s2000)")

    assert compute_lengths_in_integers.apply(model, tmp_path) == 1

    np.testing.assert_array_equal(outputs(model, {"n": LENGTHS, "k": SIZES})["y"], LENGTHS // 5 + 2000)


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


ON_CHIP = ("by several", "computed", "computed, rounded up", "computed, cut", "computed, moved", "a rest")


@pytest.mark.parametrize("precision", ["float16", "16 bits"])
def test_no_quotient_is_off_on_the_chip(precision: str, tmp_path: Path) -> None:
    names = {f"z{number}": f"float[1,{COUNT}] z{number}" for number in range(len(ON_CHIP))}
    bodies = [
        _renamed(FORMS[form], number) + f" z{number} = Cast <to = 1> (y_{number})"
        for number, form in enumerate(ON_CHIP)
    ]
    constants = {"five": np.array(5, np.float32), "several": np.resize(np.array([8, 2, -4, 3, -7], np.float32), COUNT)}
    model = graph(
        f"g (int64[1,{COUNT}] n, int64[1,{COUNT}] k) => ({', '.join(names.values())}) {{ {' '.join(bodies)} }}",
        constants,
    )
    component = with_rewrites(tmp_path / "model", model)
    unseen = [_quotients(seed) for seed in (8, 9)]
    quantized = (
        component.rewrite["all"]
        if precision == "float16"
        else component.quantize("all", component.calibrate([_quotients(seed) for seed in range(4)]))
    )

    chip = on_chip(quantized, unseen, tmp_path / "on chip")

    assert chip.cpu_ops == set()
    for actual, expected in zip(chip.outputs, on_cpu(component.ingest, unseen), strict=True):
        for name in names:
            assert np.abs(actual[name] - expected[name]).max() < 0.5, ON_CHIP[int(name[1:])]
