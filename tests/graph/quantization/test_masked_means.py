from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.quantization.bounds.masked_means import MaskedMean, masked_means
from pipeline.graph.quantization.calibration.ranges import Range
from tests.support.graphs import graph

MASK = "f = Cast <to = 1> (m) u = Unsqueeze (f, two)"
SUM = "p = Mul (h, u) t = ReduceSum <keepdims = 0> (p, one)"
COUNT = "c = ReduceSum (f, one) d = Max (c, least)"
MEAN = MaskedMean("y", "h", "t", "")


def found(body: str, most: float = 1) -> list[MaskedMean]:
    constants: dict[str, Any] = {
        "one": np.array([1]), "two": np.array([2]), "dims": np.array([1, 16, 8]), "least": np.float32(1e-9),
        "zero": np.float32(0), "unit": np.float32(1), "table": np.ones((1, 16), np.float32),
        "none": np.int64(0), "places": np.arange(16)[None],
        "weights": np.arange(1, 17, dtype=np.float32)[None, :, None],
    }  # fmt: skip
    text = "g (float[1,16,8] h, int64[1,16] m, int64[1,16] other, int64[1,1] n, float[1,1] scale, float[1,16] g)"
    model = graph(f"{text} => (float[a,b] y) {{ {body} }}", constants, opset=18)
    return masked_means(GraphIndex(model, Path()), {"f": Range(0, most), "g": Range(0, 1)})


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (f"{MASK} {SUM} {COUNT} y = Div (t, d)", MEAN),
        (f"{MASK} {SUM} c = ReduceSum (f, one) d = Add (c, least) y = Div (t, d)", MEAN),
        (f"{MASK} {SUM} c = ReduceSum (m, one) d = Cast <to = 1> (c) y = Div (t, d)", MEAN),
        (f"{MASK} {SUM} d = Cast <to = 1> (n) y = Div (t, d)", MEAN),
        (f"{MASK} {SUM} {COUNT} r = Reciprocal (d) y = Mul (r, t)", MaskedMean("y", "h", "t", "r")),
        (f"{MASK} {SUM} {COUNT} r = Div (unit, d) y = Mul (t, r)", MaskedMean("y", "h", "t", "r")),
        ("b = Equal (m, none) k = Not (b) q = Not (k) u = Unsqueeze (q, two) p = Where (u, zero, h)"
         " t = ReduceSum <keepdims = 0> (p, one) c = ReduceSum (m, one) d = Cast <to = 1> (c) y = Div (t, d)", MEAN),
        ("b = Greater (m, none) u = Unsqueeze (b, two) p = Where (u, h, zero) t = ReduceSum <keepdims = 0> (p, one)"
         " k = Greater (m, none) f = Cast <to = 1> (k) c = ReduceSum (f, one) y = Div (t, c)", MEAN),
        ("k = ReduceSum (m, one) b = Less (places, k) e = Cast <to = 1> (b) u = Unsqueeze (e, two)"
         f" {SUM} c = Cast <to = 1> (k) y = Div (t, c)", MEAN),
        (f"{MASK} w = Mul (u, weights) p = Mul (h, w) t = ReduceSum <keepdims = 0> (p, one)"
         " c = ReduceSum <keepdims = 0> (w, one) y = Div (t, c)", MEAN),
        (f"{MASK} k = Mul (h, u) p = Mul (k, weights) t = ReduceSum <keepdims = 0> (p, one) w = Mul (u, weights)"
         " c = ReduceSum <keepdims = 0> (w, one) y = Div (t, c)", MEAN),
        (f"{MASK} e = Expand (u, dims) p = Mul (e, h) t = ReduceSum <keepdims = 0> (p, one)"
         " c = ReduceSum <keepdims = 0> (e, one) d = Clip (c, least) y = Div (t, d)", MEAN),
        (f"{MASK} p = Mul (h, u) t = ReduceMean <keepdims = 0> (p, one) c = ReduceMean (f, one) y = Div (t, c)",
         MaskedMean("y", "h", "", "")),
        ("b = Cast <to = 9> (m) u = Unsqueeze (b, two) p = Where (u, h, zero) t = ReduceSum <keepdims = 0> (p, one)"
         " f = Cast <to = 1> (b) c = ReduceSum (f, one) y = Div (t, c)", MEAN),
        ("b = Equal (m, other) u = Unsqueeze (b, two) p = Where (u, zero, h) t = ReduceSum <keepdims = 0> (p, one)"
         " f = Cast <to = 1> (b) c = ReduceSum (f, one) y = Div (t, c)", MEAN),
        (f"f = Cast <to = 1> (m) k = Sub (unit, f) u = Unsqueeze (k, two) {SUM} c = ReduceSum (k, one) y = Div (t, c)",
         MEAN),
        (f"f = Cast <to = 1> (m) k = Mul (f, g) u = Unsqueeze (k, two) {SUM} c = ReduceSum (k, one) y = Div (t, c)",
         MEAN),
        (f"u = Unsqueeze (g, two) {SUM} c = ReduceSum (g, one) y = Div (t, c)", MEAN),
        (f"{MASK} {COUNT} v = Unsqueeze (f, one) t = MatMul (v, h) k = Squeeze (t, one) y = Div (k, d)", MEAN),
        (f"{MASK} {COUNT} s = Div (f, d) v = Unsqueeze (s, one) k = MatMul (v, h) y = Squeeze (k, one)",
         MaskedMean("k", "h", "", "s")),
        (f"{MASK} {COUNT} s = Div (f, d) v = Unsqueeze (s, two) p = Mul (v, h) y = ReduceSum <keepdims = 0> (p, one)",
         MaskedMean("y", "h", "", "s")),
    ],
)  # fmt: skip
def test_means_over_masks_are_known_as_exporters_spell_them(body: str, expected: MaskedMean) -> None:
    assert found(body) == [expected]


@pytest.mark.parametrize(
    "body",
    [
        f"{MASK} {SUM} y = Div (t, unit)",
        f"{MASK} {SUM} y = Div (t, scale)",
        f"{MASK} {SUM} o = Cast <to = 1> (other) c = ReduceSum (o, one) y = Div (t, c)",
        f"f = Cast <to = 1> (m) k = Sub (f, unit) u = Unsqueeze (k, two) {SUM} c = ReduceSum (k, one) y = Div (t, c)",
        f"f = Cast <to = 1> (m) e = Exp (g) k = Mul (f, e) u = Unsqueeze (k, two) {SUM} c = ReduceSum (k, one)"
        " y = Div (t, c)",
        f"{MASK} p = Mul (h, weights) t = ReduceSum <keepdims = 0> (p, one) {COUNT} y = Div (t, d)",
        f"b = Equal (m, other) f = Cast <to = 1> (b) u = Unsqueeze (f, two) {SUM} c = ReduceSum (m, one)"
        " d = Cast <to = 1> (c) y = Div (t, d)",
        f"{MASK} {SUM} {COUNT} a = Add (d, scale) y = Div (t, a)",
        f"{MASK} {SUM} {COUNT} r = Neg (d) y = Mul (t, r)",
        f"{MASK} {SUM} {COUNT} r = Div (least, d) y = Mul (t, r)",
        f"{MASK} t = ReduceSum <keepdims = 0> (h, one) {COUNT} y = Div (t, d)",
        f"{MASK} t = ReduceMax <keepdims = 0> (h, one) {COUNT} y = Div (t, d)",
        f"u = Unsqueeze (table, two) {SUM} c = ReduceSum (table, one) y = Div (t, c)",
        f"e = Exp (g) u = Unsqueeze (e, two) {SUM} c = ReduceSum (e, one) y = Div (t, c)",
        f"b = Cast <to = 9> (m) u = Unsqueeze (b, two) p = Where (u, h, least) t = ReduceSum <keepdims = 0> (p, one)"
        f" f = Cast <to = 1> (b) {COUNT} y = Div (t, d)",
    ],
)  # fmt: skip
def test_other_quotients_are_no_means(body: str) -> None:
    assert found(body) == []


def test_integers_that_are_more_than_1_are_no_mask() -> None:
    assert found(f"{MASK} {SUM} {COUNT} y = Div (t, d)", 2) == []


def test_a_long_chain_of_products_takes_no_time() -> None:
    squares = " ".join(f"g{number + 1} = Mul (g{number}, g{number})" for number in range(2000))
    body = f"g0 = Identity (g) {squares} u = Unsqueeze (g2000, two) {SUM} c = ReduceSum (g2000, one) y = Div (t, c)"
    assert found(body) == [MEAN]
