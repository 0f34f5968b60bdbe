"""Which logarithms hear how loud an input is, and what ends that."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.ir.loudness import heard_by_logarithms, scalings
from tests.support.graphs import graph

CONSTANTS = {
    "w": np.ones((4, 4), np.float32),
    "bias": np.array([0.5, -1, 2, 0], np.float32),
    "floor": np.array(1e-12, np.float32),
    "one": np.array(1, np.float32),
    "hundred": np.array(100, np.float32),
    "third": np.array(0.3, np.float32),
    "two": np.array(2, np.float32),
}


def index(body: str, result: str = "float[1,n] y") -> GraphIndex:
    return GraphIndex(graph(f"g (float[1,4] x, float[1,4] z) => ({result}) {{ {body} }}", CONSTANTS), Path())


@pytest.mark.parametrize(
    "body",
    [
        "y = Log (x)",
        "s = Mul (x, x) f = Max (s, floor) y = Log (f)",
        "m = MatMul (x, w) y = Log (m)",
        "a = Abs (x) s = Add (a, one) y = Log (s)",
        "s = Mul (x, x) r = ReduceSum (s) q = Sqrt (r) y = Log (q)",
        "a = Abs (x) y = Pow (a, third)",
        "c = Concat <axis = 1> (x, z) y = Log (c)",
        "a = Abs (x) m = Max (a, floor) q = Div (x, m) s = Mul (q, q) r = Sqrt (s) n = Mul (m, r) y = Log (n)",
    ],
)
def test_a_logarithm_of_what_scales_hears_the_input(body: str) -> None:
    (heard,) = heard_by_logarithms(index(body))
    assert "x" in heard.given.inputs
    assert heard.given.degree > 0


@pytest.mark.parametrize(
    "body",
    [
        "e = Exp (x) y = Log (e)",
        "s = Add (x, bias) y = Log (s)",
        "s = Add (x, hundred) y = Log (s)",
        "s = Sigmoid (x) y = Log (s)",
        "m = ReduceMax (x) q = Div (x, m) y = Log (q)",
        "s = Mul (x, x) y = Sqrt (s)",
        "y = Relu (x)",
    ],
)
def test_a_bias_a_bounded_function_and_a_quotient_end_it(body: str) -> None:
    assert heard_by_logarithms(index(body)) == []


def test_the_degree_is_that_of_the_power() -> None:
    known = scalings(index("s = Mul (x, x) r = Sqrt (s) p = Pow (r, two) y = Mul (p, r)"))
    assert [known[name].degree for name in ("x", "s", "r", "p", "y")] == [1, 2, 1, 2, 3]


def test_the_values_in_front_of_a_logarithm_are_those_that_scale() -> None:
    (heard,) = heard_by_logarithms(index("s = Mul (x, x) r = Sqrt (s) p = Pow (r, two) q = Mul (p, r) y = Log (q)"))
    assert heard.values == {"x", "s", "r", "p", "q"}


@pytest.mark.parametrize("body", ["d = Sub (one, x) y = Log (d)", "d = Sub (x, third) y = Log (d)"])
def test_a_number_that_is_no_floor_is_a_value_of_its_own(body: str) -> None:
    assert heard_by_logarithms(index(body)) == []
