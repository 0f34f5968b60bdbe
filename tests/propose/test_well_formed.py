"""Files whose nodes lack something: `doit init` guesses less, and ends for none of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from onnx import AttributeProto, ModelProto, NodeProto, helper

from pipeline.graph.ir.traverse import all_nodes
from pipeline.propose.interface import drop_malformed, look_at
from tests.support.graphs import graph, operators
from tests.support.interfaces import HEARD, LETTERS, selecting

ABSENT = """g (float[batch, n, 4] x) => (float[batch, n, 4] y) <float least = {-1000.0}> {
    there = Greater (x, least)
    y = Where (there, x, least)
}"""
MOVED = """g (float[batch, n] x, float[n, 4] w) => (float[4, batch] y) {
    k = Constant <value = float[1] {2.0}> ()
    s = Mul (x, k)
    m = MatMul (s, w)
    y = Transpose <perm = [1, 0]> (m)
}"""
RECURRENT = """g (float[batch, steps, 4] x, float[1, 24, 4] w, float[1, 24, 8] r) => (float[steps, 1, batch, 8] y) {
    t = Transpose <perm = [1, 0, 2]> (x)
    c = Cast <to = 1> (t)
    y, last = GRU <hidden_size = 8> (c, w, r)
}"""
MODELS = {
    "compared": graph(ABSENT), "moved": graph(MOVED), "recurrent": graph(RECURRENT), "letters": graph(LETTERS),
    "heard": graph(HEARD), "decided": selecting(),
}  # fmt: skip


def changed(node: NodeProto) -> Iterator[None]:
    """A node with less than it had, in each of many ways; it is whole again afterwards."""
    whole = NodeProto.FromString(node.SerializeToString())

    def again() -> NodeProto:
        node.CopyFrom(whole)
        return node

    for field in ("input", "output", "attribute"):
        for place in range(len(getattr(whole, field))):
            del getattr(again(), field)[place]
            yield
        again().ClearField(field)
        yield
    for place in range(len(whole.input)):
        again().input[place] = ""
        yield
    for place in range(len(whole.output)):
        again().output[place] = ""
        yield
    for place, attribute in enumerate(whole.attribute):
        for other in (helper.make_attribute(attribute.name, -7), AttributeProto(name=attribute.name)):
            again().attribute[place].CopyFrom(other)
            yield
    again()


@pytest.mark.parametrize("name", MODELS)
def test_what_lacks_something_is_looked_at(name: str, tmp_path: Path) -> None:
    model, path = MODELS[name], tmp_path / "model.onnx"
    tried = 0
    for node in all_nodes(model.graph):
        for _ in changed(node):
            path.write_bytes(model.SerializeToString())
            found = look_at("model.onnx", path)
            assert found.refused is None
            assert found.nodes == len(model.graph.node)
            tried += 1
    assert tried > 10


def test_a_constant_of_another_size_than_it_says_is_no_number(tmp_path: Path) -> None:
    model, path = graph(ABSENT), tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert look_at("model.onnx", path).limits == {"x": -1000}
    model.graph.initializer[0].float_data.extend([1.0, 2.0])
    model.graph.initializer[0].raw_data = b""
    path.write_bytes(model.SerializeToString())
    assert look_at("model.onnx", path).limits == {}


def test_what_is_whole_stays(tmp_path: Path) -> None:
    for model in MODELS.values():
        before = operators(model)
        drop_malformed(model)
        assert operators(model) == before


def test_operators_that_onnx_does_not_know_stay() -> None:
    node = helper.make_node("Attend", ["x"], ["y"], domain="ours")
    model = helper.make_model(
        helper.make_graph([node, helper.make_node("Cast", [], ["z"], domain="ours")], "g", [], [])
    )
    drop_malformed(model)
    assert operators(model) == {"Attend": 1}


def test_a_model_of_functions_keeps_its_calls() -> None:
    model = ModelProto()
    model.CopyFrom(MODELS["moved"])
    model.graph.node.append(helper.make_node("Twice", ["x"], ["z"], domain="local"))
    drop_malformed(model)
    assert operators(model)["Twice"] == 1
