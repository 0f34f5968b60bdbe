from __future__ import annotations

import copy
from pathlib import Path

from onnx import NodeProto

from pipeline.graph.ir.index import GraphIndex, LazyIndex, is_op
from pipeline.graph.ir.node_builder import Additions, each_node
from tests.support.graphs import graph, operators


@each_node
def square_roots(added: Additions, node: NodeProto) -> bool:
    """Write Sqrt as a power; a Relu gets a bound in front, and keeps its place."""
    if is_op(node, "Relu"):
        node.input[0] = added.op("Max", node.input[0], added.number("bound", -1), out="bounded")
        return True
    if not is_op(node, "Sqrt") or is_op(added.index.makers.get(node.input[0], node), "Relu"):
        return False
    added.replace("Pow", node.input[0], added.number("half", 0.5), out=node.output[0])
    return True


def test_nodes_take_the_place_of_those_whose_results_they_make(tmp_path: Path) -> None:
    model = graph("g (float[4] x) => (float[4] y) { a = Sqrt (x) b = Sqrt (a) c = Relu (b) y = Sqrt (c) }")

    assert square_roots(model, tmp_path) == 3

    assert [node.op_type for node in model.graph.node] == ["Pow", "Pow", "Max", "Relu", "Sqrt"]
    assert [tensor.name for tensor in model.graph.initializer] == ["half", "half_2", "bound"]
    assert [value.name for value in model.graph.value_info] == ["a", "b", "c", "bounded"]


def test_a_graph_without_matches_stays_as_it_is(tmp_path: Path) -> None:
    model = graph("g (float[4] x) => (float[4] y) { y = Abs (x) }")
    before = model.SerializeToString()

    assert square_roots(model, tmp_path) == 0

    assert model.SerializeToString() == before


def test_no_index_is_made_that_nobody_asks_for(tmp_path: Path) -> None:
    known: list[list[str]] = []

    @each_node
    def looks_at_a_relu(added: Additions, node: NodeProto) -> bool:
        known.append(sorted(vars(added.index)))
        return is_op(node, "Relu") and added.index.maker(node.input[0], "Sqrt") is not None

    assert (
        looks_at_a_relu(graph("g (float[4] x) => (float[4] y) { a = Abs (x) b = Relu (a) y = Neg (b) }"), tmp_path) == 0
    )
    without, _, after = known
    assert "makers" not in without
    assert {"makers", "readers", "types"} <= {*after}


def test_an_index_on_demand_is_made_for_what_is_in_one_alone(tmp_path: Path) -> None:
    model = graph("g (float[4] x) => (float[4] y) { y = Neg (x) }")
    index = LazyIndex(model, tmp_path)
    made = copy.copy(index)
    assert not hasattr(index, "maker_of")
    assert vars(index).keys() == vars(made).keys() == {"model", "_folder"}
    assert made.makers["y"].op_type == "Neg"
    assert vars(made).keys() == vars(index).keys() | LazyIndex.FIELDS


def test_nodes_that_nothing_replaces_are_removed_when_asked(tmp_path: Path) -> None:
    model = graph("g (float[4] x) => (float[4] y) { a = Abs (x) b = Abs (a) y = Neg (b) }")
    added = Additions(GraphIndex(model, tmp_path))
    added.replace("Neg", "x", out="y")
    added.join(removed=model.graph.node[:2])

    assert operators(model) == {"Neg": 1}
