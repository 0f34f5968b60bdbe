from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all, cast_before_choosing
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, with_rewrites

INTEGER = "y = Cast <to = 7> (c)"
FORMS = {
    "clipped": f"c = Clip (x, none, most) {INTEGER}",
    "clipped below": f"c = Clip (x, none) {INTEGER}",
    "clipped above": f'c = Clip (x, "", most) {INTEGER}',
    "bounded": f"a = Max (x, none) c = Min (most, a, many) {INTEGER}",
    "chosen": f"b = Less (x, two) c = Where (b, two, x) {INTEGER}",
    "masked": f"m = Cast <to = 1> (valid) c = Mul (m, x) {INTEGER}",
    "its size": f"a = Neg (x) r = Relu (a) b = Abs (x) c = Max (r, b) {INTEGER}",
    "moved": f"a = Reshape (x, dims) r = Clip (a, none, most) c = Reshape (r, other) {INTEGER}",
    "of integers": f"f = Cast <to = 1> (n) c = Min (f, x) {INTEGER}",
    "to int32": "c = Clip (x, none, most) i = Cast <to = 6> (c) y = Cast <to = 7> (i)",
    "twice": "c = Clip (x, none, most) d = Abs (c) i = Cast <to = 6> (d) j = Cast <to = 7> (c) k = Cast <to = 7> (i)"
    " y = Add (j, k)",
}
OTHERS = {
    "as it comes": "y = Cast <to = 7> (x)",
    "moved and nothing else": f"a = Reshape (x, dims) c = Reshape (a, other) {INTEGER}",
    "a fraction": f"c = Clip (x, none, half) {INTEGER}",
    "several fractions": f"c = Max (x, parts) {INTEGER}",
    "a sum": f"a = Add (x, two) c = Clip (a, none, most) {INTEGER}",
    "a product": f"c = Mul (x, x) {INTEGER}",
    "rounded": f"a = Round (x) c = Clip (a, none, most) {INTEGER}",
    "computed": f"a = Exp (x) c = Min (a, most) {INTEGER}",
    "to a boolean": "c = Clip (x, none, most) b = Cast <to = 9> (c) y = Cast <to = 7> (b)",
}
SIZE = 60
NUMBERS: dict[str, ArrayLike] = {
    "none": np.float32(0), "two": np.float32(2), "half": np.float32(0.5), "most": np.float32(59999),
    "many": np.full((1, SIZE), 50000, np.float32), "parts": np.array([0.5] * SIZE, np.float32),
    "dims": np.array([SIZE]), "other": np.array([1, SIZE]),
}  # fmt: skip
X = np.concatenate([np.arange(-4, 4, 0.25), np.arange(2043, 2071)]).astype(np.float32).reshape(1, SIZE)
REST: dict[str, NDArray[Any]] = {
    "n": np.arange(SIZE).reshape(1, SIZE),
    "valid": np.arange(SIZE).reshape(1, SIZE) % 3 > 0,
}


def build(body: str, result: str = "int64") -> ModelProto:
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    used = {name: value for name, value in NUMBERS.items() if name in words}
    given = f"float[1,{SIZE}] x, int64[1,{SIZE}] n, bool[1,{SIZE}] valid"
    return graph(f"g ({given}) => ({result}[1,{SIZE}] y) {{ {body} }}", used)


@pytest.mark.parametrize("form", FORMS)
def test_integers_stay_what_they_were(form: str, tmp_path: Path) -> None:
    model = build(FORMS[form])
    before = outputs(model, {"x": X, **REST})["y"]

    assert apply_all(model, tmp_path)["cast_before_choosing"] == (2 if form == "twice" else 1)

    assert operators(model).keys().isdisjoint({"Clip", "Relu", "Neg"})
    np.testing.assert_array_equal(outputs(model, {"x": X, **REST})["y"], before)
    assert cast_before_choosing.apply(model, tmp_path) == 0


@pytest.mark.parametrize("form", OTHERS)
def test_what_may_give_other_integers_is_left_alone(form: str, tmp_path: Path) -> None:
    model = build(OTHERS[form])
    before = operators(model)

    assert cast_before_choosing.apply(model, tmp_path) == 0

    assert operators(model) == before


@pytest.mark.parametrize("precision", ["float16", "uint16", "uint8"])
def test_large_integers_are_right_on_the_chip(precision: str, tmp_path: Path) -> None:
    forms = ("clipped", "bounded", "masked", "chosen", "its size")
    taken = [FORMS[form].replace("y =", f"y{number} =") for number, form in enumerate(forms)]
    body = " ".join(_renamed(each, number) for number, each in enumerate(taken))
    results = ", ".join(f"int64[1,{SIZE}] y{number}" for number in range(len(forms)))
    given = f"float[1,{SIZE}] x, bool[1,{SIZE}] valid"
    used = {name: NUMBERS[name] for name in ("none", "two", "most", "many")}
    component = with_rewrites(tmp_path / "model", graph(f"g ({given}) => ({results}) {{ {body} }}", used))
    rng = np.random.default_rng(0)
    seen = [{"x": rng.integers(0, 90, (1, SIZE)).astype(np.float32), "valid": REST["valid"]}]
    calls = [{"x": rng.integers(3, 60000, (1, SIZE)).astype(np.float32), "valid": REST["valid"]} for _ in range(2)]
    model = component.rewrite["all"]
    if precision != "float16":
        model = component.quantize("all", component.calibrate(seen), activations=precision)

    chip = on_chip(model, calls, tmp_path / "out")

    assert not chip.cpu_ops
    for actual, expected in zip(chip.outputs, on_cpu(component.ingest, calls), strict=True):
        for name in expected:
            np.testing.assert_array_equal(actual[name], expected[name])


def _renamed(body: str, number: int) -> str:
    """The nodes of a form, with values of their own."""
    for name in ("a", "b", "c", "m", "r"):
        body = body.replace(f"{name} =", f"{name}{number} =").replace(f"({name},", f"({name}{number},")
        body = body.replace(f" {name},", f" {name}{number},").replace(f"({name})", f"({name}{number})")
        body = body.replace(f" {name})", f" {name}{number})")
    return body
