"""Whole numbers that come back from an encoding as they are, on the CPU and on the real emulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike

from pipeline.contracts.scheme import Rule
from pipeline.graph.files.model_file import MODEL, load_graph
from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.quantization.bounds.whole_numbers import exact_scale, held_exactly
from tests.support.graphs import graph
from tests.support.on_htp import on_chip, on_cpu, with_rewrites

WHOLE = np.arange(-90, 96, dtype=np.float32)
CALLS = [{"x": np.resize(part, (1, 62))} for part in np.split(WHOLE, 3)]
CONSTANTS: dict[str, ArrayLike] = {
    "quarter": np.float32(0.25), "half": np.float32(0.5), "none": np.float32(0), "five": np.float32(5),
    "last": np.array([1]), "few": np.array([2, 3, 4], np.float32), "parts": np.array([0.5, 1], np.float32),
}  # fmt: skip


def model_of(body: str, result: str) -> Any:
    used = {name: array for name, array in CONSTANTS.items() if name in body}
    return graph(f"g (float[1,62] x) => ({result} y) {{ {body} }}", used, opset=18)


@pytest.mark.parametrize(
    ("body", "result"),
    [
        ("y = Cast <to = 6> (x)", "int32[1,62]"),
        ("y = Cast <to = 7> (x)", "int64[1,62]"),
        ("n = Neg (x) y = Cast <to = 6> (n)", "int32[1,62]"),
        ("n = Neg (x) y = Cast <to = 7> (n)", "int64[1,62]"),
        ("y = Floor (x)", "float[1,62]"),
        ("q = Mul (x, quarter) y = Floor (q)", "float[1,62]"),
        ("h = Mul (x, half) y = Round (h)", "float[1,62]"),
        ("q = Mul (x, quarter) c = Ceil (q) s = ReduceSum (c, last) y = Cast <to = 6> (s)", "int32[1,1]"),
        ("a = Abs (x) y = Cast <to = 2> (a)", "uint8[1,62]"),
    ],
)
def test_what_rounds_gets_whole_numbers(body: str, result: str, tmp_path: Path) -> None:
    component = with_rewrites(tmp_path, model_of(body, result))
    made = component.quantize("all", component.calibrate(CALLS))
    expected = [each["y"] for each in on_cpu(component.rewrite["all"], CALLS)]
    np.testing.assert_array_equal([each["y"] for each in on_cpu(made, CALLS)], expected)
    chip = on_chip(made, CALLS, tmp_path / "out")
    np.testing.assert_array_equal([each["y"] for each in chip.outputs], expected)
    assert not chip.cpu_ops


@pytest.mark.parametrize("body", ["n = Add (w, few)", "n = Sub (few, w)", "n = Sub (w, five)"])
def test_a_small_constant_counts_beside_large_numbers(body: str, tmp_path: Path) -> None:
    """In steps of its own, 65535 of them, HTP took 1 for 0."""
    calls = [{"x": np.rint(np.linspace(start, 20000, 63, dtype=np.float32)).reshape(1, 63)} for start in (0, 3)]
    text = f"g (float[1,63] x) => (int32[1,63] y) {{ w = Floor (x) {body} y = Cast <to = 6> (n) }}"
    constants: dict[str, ArrayLike] = {"few": np.resize(np.array([1, 2, -3], np.float32), 63), "five": np.float32(5)}
    model = graph(text, {name: array for name, array in constants.items() if name in body}, opset=18)
    component = with_rewrites(tmp_path, model)

    chip = on_chip(component.quantize("all", component.calibrate(calls)), calls, tmp_path / "out")

    assert not chip.cpu_ops
    expected = [each["y"] for each in on_cpu(component.rewrite["all"], calls)]
    np.testing.assert_array_equal([each["y"] for each in chip.outputs], expected)


@pytest.mark.parametrize(("body", "sign"), [("y = Cast <to = 6> (x)", 1), ("n = Neg (x) y = Cast <to = 6> (n)", -1)])
def test_fractions_are_cut_off_towards_zero_on_the_chip(body: str, sign: int, tmp_path: Path) -> None:
    fractions = [{"x": (call["x"] + np.float32(0.375)).astype(np.float32)} for call in CALLS]
    component = with_rewrites(tmp_path, model_of(body, "int32[1,62]"))
    made = component.quantize("all", component.calibrate(fractions))
    chip = on_chip(made, fractions, tmp_path / "out")
    expected = [np.trunc(sign * each["x"]) for each in fractions]
    np.testing.assert_array_equal([each["y"] for each in chip.outputs], expected)


def test_a_clip_that_an_encoding_does_not_end_at_stays(tmp_path: Path) -> None:
    """An encoding of 0 to 5 ends at 5; with a power of two it ends at 8."""
    component = with_rewrites(
        tmp_path, model_of("h = Mul (x, half) c = Clip (h, none, five) y = Cast <to = 6> (c)", "int32[1,62]")
    )
    made = component.quantize("all", component.calibrate(CALLS))
    assert max(each["y"].max() for each in on_cpu(made, CALLS)) == 5


def test_a_cast_that_a_rule_keeps_in_float_is_one(tmp_path: Path) -> None:
    component = with_rewrites(tmp_path, model_of("n = Tanh (x) y = Cast <to = 6> (n)", "int32[1,62]"))
    ranges = component.calibrate(CALLS)

    def casts(*rules: Rule) -> int:
        folder = component.quantize("all", ranges, rules=rules).folder
        return [node.op_type for node in load_graph(folder / MODEL).graph.node].count("Cast")

    assert casts() == 2
    assert casts(Rule(nodes=("y_cast",), precision="fp16")) == 1


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y = Relu (x)", ""),
        ("y = Floor (x)", "x y"),
        ("t = Transpose (x) n = Neg (t) y = Floor (n)", "n t x y"),
        ("c = Cast <to = 6> (x) f = Cast <to = 1> (c) y = Mul (f, half)", "f x"),
        ("c = Cast <to = 6> (x) f = Cast <to = 1> (c) s = ReduceSum (f, last) y = Neg (s)", "f s x y"),
        ("e = Exp (x) n = Add (x, e) y = Round (n)", "n y"),
        ("a = Abs (x) s = Sqrt (a) r = Round (s) y = Max (r, few)", "r s y"),
        ("a = Abs (x) s = Sqrt (a) r = Round (s) y = Max (r, parts)", "r s"),
    ],
)
def test_which_values_are_held_exactly(body: str, expected: str) -> None:
    text = f"g (float[N,1] x) => (float[a,b] y) {{ {body} }}"
    used = {name: array for name, array in CONSTANTS.items() if name in body}
    assert sorted(held_exactly(GraphIndex(graph(text, used, opset=18), Path()))) == expected.split()


@pytest.mark.parametrize("scale", [3e-9, 0.0028, 0.25, 0.7, 1.0])
def test_one_is_a_multiple_of_an_exact_scale(scale: float) -> None:
    found = float(np.float32(exact_scale(scale)))
    assert scale <= found <= 2 * scale
    assert (1 / found) % 1 == 0
    assert exact_scale(3.5) == 3.5
