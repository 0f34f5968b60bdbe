from __future__ import annotations

import numpy as np
import pytest

from pipeline.errors import ModelError
from pipeline.graph.shapes.too_many_dims import check_dims
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
    with pytest.raises(ModelError) as told:
        check_dims(graph(text, CONSTANTS))
    assert told.value.what == "node 'ArgMax_2' (ArgMax) has a tensor of 6 dims: QNN takes at most 5"
    assert told.value.where == "its input 'a' float32 [2, 2, 2, 3, 2, 4]"
    assert "in no precision" in told.value.why
    assert told.value.remedy.startswith("end the component before it with cut: ['r'] in the config")
    assert "thresholds: {max_cpu_nodes: 20, max_partitions: 2}" in told.value.remedy


@pytest.mark.parametrize(("inside", "outside"), [("1,2,3,4,2,4", "24,8"), ("24,8", "1,2,3,4,2,4")])
def test_an_input_or_output_is_named(inside: str, outside: str) -> None:
    shape = np.array([int(each) for each in outside.split(",")])
    with pytest.raises(ModelError, match=r"put \'[xy]\' has 6 dims: QNN takes at most 5") as told:
        check_dims(graph(f"g (float[{inside}] x) => (float[{outside}] y) {{ y = Reshape (x, to) }}", {"to": shape}))
    assert "let the application reshape" in told.value.remedy


def test_five_dims_are_taken() -> None:
    check_dims(graph("g (float[1,2,3,4,2] x) => (float[1,2,3,4,2] y) { y = Relu (x) }"))
