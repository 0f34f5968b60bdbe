from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from pipeline.graph.ir import rules
from pipeline.graph.ir.index import GraphIndex, LazyIndex
from pipeline.graph.ir.node_builder import Additions
from pipeline.graph.ir.rules import F32, GraphValue, Node, lower, op
from tests.support.graphs import graph, operators, outputs


@lower("Sqrt", "Relu", of=F32)
def square_roots(n: Node) -> GraphValue | bool:
    """Write Sqrt as a power; a Relu gets a bound in front, and keeps its place."""
    if n.kind == "Relu":
        return n.read(0, op.Max(n[0], -1))
    return False if n[0].maker("Relu") else op.Pow(n[0], 0.5)


def test_nodes_take_the_place_of_those_whose_results_they_make(tmp_path: Path) -> None:
    model = graph("g (float[4] x) => (float[4] y) { a = Sqrt (x) b = Sqrt (a) c = Relu (b) y = Sqrt (c) }")

    assert square_roots.apply(model, tmp_path) == 3

    assert [node.op_type for node in model.graph.node] == ["Pow", "Pow", "Max", "Relu", "Sqrt"]
    assert [tensor.name for tensor in model.graph.initializer] == ["a_constant", "b_constant", "c_constant"]
    assert [value.name for value in model.graph.value_info] == ["a", "b", "c", "c_max"]


def test_a_graph_without_matches_stays_as_it_is(tmp_path: Path) -> None:
    model = graph("g (float[4] x) => (float[4] y) { y = Abs (x) }")
    before = model.SerializeToString()

    assert square_roots.apply(model, tmp_path) == 0

    assert model.SerializeToString() == before


@lower("Softsign", "Neg", "Abs")
def fold_signs(n: Node) -> GraphValue | int | None:
    """Hand on the input of Neg, count a Softsign twice, and write an Abs that two places share."""
    if n.kind == "Neg":
        return n[0]
    return 2 if n.kind == "Softsign" else op.Add(n.once("one", lambda: op.Relu(n[0])), np.array([1, 2], np.float32))


def test_values_that_are_not_new_are_handed_on_and_shared_ones_made_once(tmp_path: Path) -> None:
    body = "a = Abs (x) b = Abs (x) c = Add (a, b) y = Neg (c) z = Softsign (y)"
    model = graph(f"g (float[2] x) => (float[2] y, float[2] z) {{ {body} }}")
    model.graph.value_info.add(name="a_relu", type=model.graph.output[0].type)  # the name is taken

    assert fold_signs.apply(model, tmp_path) == 5

    assert operators(model) == {"Relu": 1, "Add": 3, "Identity": 1, "Softsign": 1}
    assert "a_relu_2" in {value.name for value in model.graph.value_info}
    x = np.array([1, -3], np.float32)
    np.testing.assert_array_equal(outputs(model, {"x": x})["y"], [4, 4])


def test_a_rule_makes_no_index_where_nothing_has_its_operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(rules, "LazyIndex", refuse)
    model = graph("g (float[4] x) => (float[4] y) { y = Exp (x) }")
    model.graph.node.append(helper.make_node("Sqrt", ["x"], ["other"], domain="com.example"))
    assert square_roots.apply(model, tmp_path) == 0


def test_an_answer_is_of_the_type_that_the_rule_is_for(tmp_path: Path) -> None:
    assert square_roots.apply(graph("g (float16[4] x) => (float16[4] y) { y = Sqrt (x) }"), tmp_path) == 0


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
