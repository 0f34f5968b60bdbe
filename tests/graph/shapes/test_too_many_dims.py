from __future__ import annotations

import numpy as np
import pytest

from pipeline.contracts.rewrite import TooManyDims
from pipeline.graph.shapes.too_many_dims import too_many_dims
from tests.support.graphs import graph

CONSTANTS = {"six": np.array([2, 2, 2, 3, 2, 4]), "rows": np.array([1, -1, 8])}


def test_the_node_that_wants_them_is_named_with_its_tensor_and_where_to_end_before_it() -> None:
    text = """g (float[1,24,8] x) => (float[a,b,c] y) {
        r = Relu (x)
        a = Reshape (r, six)
        b = ArgMax <axis = 2> (a)
        c = Cast <to = 1> (b)
        y = Reshape (c, rows)
    }"""
    value = "its input 'a' float32 [2, 2, 2, 3, 2, 4]"
    assert too_many_dims(graph(text, CONSTANTS)) == TooManyDims("node 'ArgMax_2' (ArgMax)", value, 6, 5, 4, ("r",))


@pytest.mark.parametrize(
    ("inside", "outside", "at"), [("1,2,3,4,2,4", "24,8", "input 'x'"), ("24,8", "1,2,3,4,2,4", "output 'y'")]
)
def test_an_input_or_output_is_named(inside: str, outside: str, at: str) -> None:
    shape = np.array([int(each) for each in outside.split(",")])
    found = too_many_dims(
        graph(f"g (float[{inside}] x) => (float[{outside}] y) {{ y = Reshape (x, to) }}", {"to": shape})
    )
    assert found == TooManyDims(at, f"{at} float32 [1, 2, 3, 4, 2, 4]", 6, 5)


def test_five_dims_are_taken() -> None:
    assert too_many_dims(graph("g (float[1,2,3,4,2] x) => (float[1,2,3,4,2] y) { y = Relu (x) }")) is None
