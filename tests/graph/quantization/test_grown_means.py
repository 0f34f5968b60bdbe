"""Means over masks that are shorter than in all samples: their encodings, and what comes out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.quantization.bounds.grown_means import grown_means
from pipeline.graph.quantization.calibration.ranges import Range
from tests.support.graphs import graph
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites
from tests.support.stage_runs import Component

Arrays = dict[str, NDArray[Any]]

MEAN = """f = Cast <to = 1> (m) u = Unsqueeze (f, two) p = Mul (h, u) t = ReduceSum <keepdims = 0> (p, one)
    c = ReduceSum (f, one) d = Max (c, least) a = Div (t, d)"""
CONSTANTS: dict[str, Any] = {
    "one": np.array([1]), "two": np.array([2]), "least": np.float32(1e-9), "half": np.full(8, 0.5, np.float32),
    "square": np.float32(2), "root": np.float32(0.5), "low": np.float32(-2), "high": np.float32(3),
    "weight": np.eye(8, dtype=np.float32), "power": np.float32(900), "none": np.int64(0), "zero": np.float32(0),
    "sizes": np.array([4, 4]), "nothing": np.zeros((1, 8), np.float32),
}  # fmt: skip


def grown(body: str, ranges: dict[str, Range], kept: frozenset[str] = frozenset()) -> dict[str, Range]:
    text = f"g (float[1,16,8] h, int64[1,16] m, float[1,8] z) => (float[k,l] y) {{ {MEAN} {body} }}"
    seen = {"f": Range(0, 1), "h": Range(-4, 8), "t": Range(-10, 20), "a": Range(-1, 1), **ranges}
    return grown_means(GraphIndex(graph(text, CONSTANTS, opset=20), Path()), seen, seen, kept)


@pytest.mark.parametrize(
    ("seen", "of", "expected"),
    [
        (Range(-1, 1), Range(-4, 8), Range(-4, 8)),
        (Range(-1, 1), Range(-40, 8), Range(-16, 8)),
        (Range(-5, 2), Range(-4, 8), Range(-5, 8)),
        (Range(0, 0), Range(-4, 8), None),
        (Range(-4, 8), Range(-4, 8), None),
    ],
)
def test_a_mean_goes_as_far_as_what_it_is_taken_of_within_16_times_the_samples(
    seen: Range, of: Range, expected: Range | None
) -> None:
    assert grown("y = Identity (a)", {"a": seen, "h": of}).get("a") == expected


def test_a_sum_may_be_of_one_too() -> None:
    assert grown("y = Identity (a)", {"t": Range(-2, 2)})["t"] == Range(-4, 8)


@pytest.mark.parametrize(
    ("body", "seen", "expected"),
    [
        ("y = Identity (a)", Range(-1, 1), Range(-4, 8)),
        ("y = Add (a, half)", Range(-0.5, 1.5), Range(-3.5, 8.5)),
        ("y = Sub (half, a)", Range(-0.5, 1.5), Range(-7.5, 4.5)),
        ("y = Concat <axis = 1> (z, a)", Range(-5, 5), Range(-5, 8)),
        ("x, y = Split <axis = 1> (a, sizes)", Range(-1, 1), Range(-4, 8)),
        ("b = IsNaN (a) y = Where (b, z, a)", Range(-5, 5), Range(-5, 8)),
        ("y = Clip (a, low, high)", Range(0, 1), Range(-2, 3)),
        ("y = Mean (a, z)", Range(-1, 1), Range(-2.5, 4.5)),
        ("x = MatMul (a, weight) y = Add (a, x)", Range(-1, 1), Range(-8, 8)),
        ("x = MatMul (a, weight) y = Sub (a, x)", Range(-0.125, 0.125), Range(-1, 1)),
        ("x = ReduceMean (a, one) y = Sub (a, x)", Range(-1.5, 1.5), Range(-11.5, 12)),
        ("y = Sub (a, z)", Range(-0.125, 0.125), Range(-2, 2)),
        ("q = Mul (a, a) y = Add (q, z)", Range(-0.125, 0.125), Range(-0.125, 8)),
        ("y = MatMul (a, weight)", Range(-1, 2), Range(-8, 16)),
        ("y = Gemm (a, weight, half)", Range(-1, 2), Range(-8, 16)),
        ("y = Gelu (a)", Range(-0.125, 1), Range(-1, 8)),
        ("y = Mul (z, a)", Range(-1, 1), Range(-8, 8)),
        ("y = Mul (a, a)", Range(0, 1), Range(0, 64)),
        ("y = Pow (a, square)", Range(0, 1), Range(0, 64)),
        ("y = Pow (a, power)", Range(0, 1), Range(0, 256)),
        ("q = Mul (a, a) s = ReduceSum (q, one) y = Sqrt (s)", Range(0, 2), Range(0, 16)),
        ("n = ReduceL2 (a, one) b = Max (n, least) y = Div (a, b)", Range(-0.25, 0.25), Range(-1, 1)),
        ("q = Mul (a, a) s = ReduceSum (q, one) b = Sqrt (s) y = Div (a, b)", Range(-0.25, 0.25), Range(-1, 1)),
        ("q = Pow (a, square) s = ReduceSum (q, one) b = Add (s, least) n = Sqrt (b) y = Div (a, n)",
         Range(-0.25, 0.25), Range(-1, 1)),
        ("y = LpNormalization (a)", Range(-0.03125, 0.25), Range(-0.25, 1)),
        ("n = ReduceL2 (z, one) y = Div (a, n)", Range(-0.25, 0.25), Range(-2, 2)),
        ("y = Sigmoid (a)", Range(0.25, 0.75), None),
        ("y = Tanh (a)", Range(-0.5, 0.5), None),
        ("y = Div (z, a)", Range(-1, 1), None),
        ("y = Add (z, half)", Range(-1, 1), None),
    ],
)  # fmt: skip
def test_what_is_computed_of_a_mean_goes_as_much_further(body: str, seen: Range, expected: Range | None) -> None:
    between = {"x": Range(-1, 1), "q": Range(0, 1), "s": Range(0, 4), "n": Range(0, 2), "b": Range(0, 2)}
    assert grown(body, {**between, "z": Range(-5, 5), "y": seen}).get("y") == expected


def test_what_each_token_counts_may_be_all() -> None:
    text = "g (float[1,16,8] h, int64[1,16] m) => (float[1,1,8] y) { f = Cast <to = 1> (m) c = ReduceSum (f, one)"
    model = graph(f"{text} s = Div (f, c) v = Unsqueeze (s, one) y = MatMul (v, h) }}", CONSTANTS, opset=18)
    seen = {"f": Range(0, 1), "s": Range(0, 0.0625), "v": Range(0, 0.0625), "h": Range(-2, 2), "y": Range(-1, 1)}
    found = grown_means(GraphIndex(model, Path()), seen, seen)
    assert (found["s"], found["v"], found["y"]) == (Range(0, 1), Range(0, 1), Range(-2, 2))


def test_what_is_kept_ends_the_growth() -> None:
    found = grown("b = Add (a, half) y = Relu (b)", {"b": Range(-1, 2), "y": Range(0, 2)}, frozenset(["b"]))
    assert "a" in found
    assert found.keys().isdisjoint(("b", "y"))


ENCODERS = {
    "sum": f"{MEAN} n = ReduceL2 <keepdims = 1> (a, one) b = Max (n, least) y = Div (a, b)",
    "squares": f"{MEAN} q = Mul (a, a) s = ReduceSum (q, one) r = Sqrt (s) b = Max (r, least) y = Div (a, b)",
    "matrix": "f = Cast <to = 1> (m) c = ReduceSum (f, one) d = Max (c, least) v = Div (f, d) w = Unsqueeze (v, one)"
    " a = MatMul (w, h) y = Squeeze (a, one)",
    "filled": "b = Equal (m, none) u = Unsqueeze (b, two) p = Where (u, zero, h) t = ReduceSum <keepdims = 0> (p, one)"
    " k = ReduceSum (m, one) c = Cast <to = 1> (k) y = Div (t, c)",
    "layer": f"{MEAN} x = MatMul (a, weight) e = Add (x, half) y = Tanh (e)",
    "reciprocal": f"{MEAN.replace('a = Div (t, d)', 'r = Reciprocal (d) a = Mul (t, r)')} y = Relu (a)",
    "split": f"{MEAN} v, w = Split <axis = 1> (a, sizes) x = Relu (w) r = Neg (v) y = Concat <axis = 1> (x, r)",
    "empty": f"{MEAN} k = ReduceSum (m, one) e = Equal (k, none) y = Where (e, nothing, a)",
    "product": f"{MEAN} k = ReduceMax <keepdims = 0> (h, one) w = Unsqueeze (k, two) v = Unsqueeze (a, one)"
    " x = MatMul (w, v) y = ReduceSum <keepdims = 0> (x, one)",
}


def encoder(root: Path, body: str, known: Mapping[str, Any] = CONSTANTS) -> Component:
    text = "g (float[1,64,8] h, int64[1,64] m) => (float[1,8] y)"
    constants = {name: each for name, each in known.items() if name in body}
    return with_rewrites(root, graph(f"{text} {{ {body} }}", constants, opset=18))


def samples(lengths: list[int]) -> list[Arrays]:
    random = np.random.default_rng(7)
    return [
        {
            "h": random.normal(0.1, 1, (1, 64, 8)).astype(np.float32),
            "m": (np.arange(64) < length).astype(np.int64)[None],
        }
        for length in lengths
    ]


@pytest.mark.parametrize("form", ENCODERS)
def test_few_tokens_are_right_on_htp_where_all_samples_were_full(form: str, tmp_path: Path) -> None:
    component = encoder(tmp_path, ENCODERS[form])
    made = component.quantize(
        "all", component.calibrate(samples([61, 62, 63, 64] * 4)), weights="int16", wide_products=True
    )
    few, full = samples([1, 2, 4] * 3), samples([60, 64] * 4)
    on_htp = on_chip(made, [*few, *full], tmp_path / "chip")
    assert not on_htp.cpu_ops
    assert sqnr_db(on_cpu(component.rewrite["all"], few), on_htp.outputs[: len(few)], "y") > 50
    assert sqnr_db(on_cpu(component.rewrite["all"], full), on_htp.outputs[len(few) :], "y") > 50


def test_many_residual_layers_go_no_further_than_what_they_are_made_of(tmp_path: Path) -> None:
    random, constants = np.random.default_rng(3), dict(CONSTANTS)
    body = f"{MEAN} x0 = Identity (a)"
    for layer in range(24):
        constants[f"w{layer}"] = random.normal(0, 0.35, (8, 8)).astype(np.float32)
        constants[f"b{layer}"] = random.normal(0, 0.3, 8).astype(np.float32)
        body += f" q{layer} = MatMul (x{layer}, w{layer}) r{layer} = Add (q{layer}, b{layer})"
        body += f" s{layer} = Relu (r{layer}) x{layer + 1} = Add (x{layer}, s{layer})"
    component = encoder(tmp_path, f"{body} y = Identity (x24)", constants)
    made = component.quantize(
        "all", component.calibrate(samples([61, 62, 63, 64] * 4)), weights="int16", wide_products=True
    )
    truth = component.rewrite["all"]
    for feeds in (samples([1, 2, 4] * 3), samples([60, 64] * 4)):
        assert sqnr_db(on_cpu(truth, feeds), on_cpu(made, feeds), "y") > 60
