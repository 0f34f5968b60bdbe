"""States: one encoding for all that moves one, integers at the graph's edge."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from pipeline.contracts.scheme import Scheme
from pipeline.errors import QuantizationError
from pipeline.graph.cpu import load_session, run
from pipeline.graph.files.model_file import save_graph
from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.quantization.calibration.ranges import Range, Ranges
from pipeline.graph.quantization.qdq.states import check_tied, groups, integer_edges, tied
from pipeline.graph.quantization.quantizer import quantize

SCHEME = Scheme("uint16", "uint8", per_channel=True, states="uint8")
MEASURED = {"x": 1.0, "past_in": 2.0, "turned": 3.0, "key": 2.5, "keys": 2.5, "scores": 9.0, "logits": 9.0}


def model() -> ModelProto:
    """A key made of x by a product that something rotates, joined to those before it."""
    floats = TensorProto.FLOAT
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["turned"], "turn"),
        helper.make_node("Transpose", ["turned"], ["key"], "move", perm=[0, 2, 1]),
        helper.make_node("Concat", ["past_in", "key"], ["keys"], "join", axis=2),
        helper.make_node("MatMul", ["x", "keys"], ["scores"], "product"),
        helper.make_node("Softmax", ["scores"], ["logits"], "choose", axis=-1),
        helper.make_node("Identity", ["key"], ["past_out"], "out"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", floats, [1, 2, 4]),
            helper.make_tensor_value_info("past_in", floats, [1, 4, 3]),
        ],
        [
            helper.make_tensor_value_info("logits", floats, [1, 2, 5]),
            helper.make_tensor_value_info("past_out", floats, [1, 4, 2]),
        ],
        value_info=[
            helper.make_tensor_value_info("turned", floats, [1, 2, 4]),
            helper.make_tensor_value_info("key", floats, [1, 4, 2]),
            helper.make_tensor_value_info("keys", floats, [1, 4, 5]),
            helper.make_tensor_value_info("scores", floats, [1, 2, 5]),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)


def ranges() -> Ranges:
    return Ranges({name: Range(-size, size / 2) for name, size in {**MEASURED, "past_out": 2.5}.items()})


def quantized(tmp_path: Path) -> tuple[ModelProto, list[tuple[str, ...]]]:
    made = model()
    index = GraphIndex(made, tmp_path)
    states = groups(index)
    spans, scheme = tied(index, ranges(), SCHEME)
    return quantize(made, tmp_path, spans, scheme).model, states


def test_a_state_is_what_moves_it_and_no_more(tmp_path: Path) -> None:
    (members,) = groups(GraphIndex(model(), tmp_path))

    assert sorted(members) == ["key", "keys", "past_in", "past_out", "turned"]


def test_all_of_a_state_has_one_symmetric_encoding(tmp_path: Path) -> None:
    made, states = quantized(tmp_path)

    check_tied(GraphIndex(made, tmp_path), states)
    edges = integer_edges(made)
    assert edges["past_in"] == edges["past_out"]
    assert edges["past_in"].dtype == "uint8"
    assert edges["past_in"].zero_point == 128
    assert edges["past_in"].scale == pytest.approx(3.0 / 127)


def test_what_calibration_chose_for_one_holds_for_all_of_a_state(tmp_path: Path) -> None:
    made = model()
    index = GraphIndex(made, tmp_path)
    chosen = {8: {"past_out": Range(-1.5, 1.27)}, 16: {"past_out": Range(-2.4, 1.2), "x": Range(-0.5, 0.5)}}

    spans, scheme = tied(index, Ranges(ranges(), chosen), SCHEME)
    quantize(made, tmp_path, spans, scheme)

    check_tied(GraphIndex(made, tmp_path), groups(GraphIndex(model(), tmp_path)))
    assert {spans.at(name, 8).high for name in ("past_in", "keys", "key", "past_out")} == {1.5}
    assert spans.at("past_out", 16).high == 1.5
    assert spans.at("x", 16) == Range(-0.5, 0.5)


def test_a_tie_that_is_broken_is_named(tmp_path: Path) -> None:
    made, states = quantized(tmp_path)
    for tensor in made.graph.initializer:
        if tensor.name == "keys_scale":
            tensor.CopyFrom(numpy_helper.from_array(np.array(0.5, np.float32), tensor.name))

    with pytest.raises(QuantizationError, match=r"the encodings of a state differ.*'keys'"):
        check_tied(GraphIndex(made, tmp_path), states)


def test_the_graph_takes_and_gives_integers_and_computes_the_same(tmp_path: Path) -> None:
    made, _ = quantized(tmp_path)
    save_graph(made, tmp_path / "float.onnx")
    edges = integer_edges(made)
    save_graph(made, tmp_path / "integer.onnx")
    kinds = {value.name: value.type.tensor_type.elem_type for value in (*made.graph.input, *made.graph.output)}
    rng = np.random.default_rng(0)
    x, past = rng.uniform(-1, 0.5, (1, 2, 4)).astype(np.float32), rng.uniform(-2, 1, (1, 4, 3)).astype(np.float32)

    before = run(load_session(tmp_path / "float.onnx"), {"x": x, "past_in": past})
    integers = {
        name: (np.rint(array / edges[name].scale) + edges[name].zero_point).astype(edges[name].dtype)
        for name, array in (("x", x), ("past_in", past))
    }
    after = run(load_session(tmp_path / "integer.onnx"), integers)

    assert kinds == {
        "x": TensorProto.UINT16, "past_in": TensorProto.UINT8, "logits": TensorProto.FLOAT,
        "past_out": TensorProto.UINT8,
    }  # fmt: skip
    np.testing.assert_array_equal(after["logits"], before["logits"])
    edge = edges["past_out"]
    real = (after["past_out"].astype(np.float32) - edge.zero_point) * np.float32(edge.scale)
    np.testing.assert_allclose(real, before["past_out"], rtol=1e-6)


def test_a_graph_without_a_state_is_refused(tmp_path: Path) -> None:
    made = model()
    made.graph.output.pop()

    with pytest.raises(QuantizationError, match="no state"):
        tied(GraphIndex(made, tmp_path), ranges(), SCHEME)
