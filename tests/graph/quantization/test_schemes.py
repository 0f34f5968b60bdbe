"""int4 weights, and rules for places where a scheme differs, as far as the QDQ model shows them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto

from pipeline.contracts.scheme import Rule, Scheme
from pipeline.errors import QuantizationError
from pipeline.graph.files.model_file import byte_size, load_graph, tensor_array
from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.quantization.calibration.observe import Observer
from pipeline.graph.quantization.calibration.ranges import Range
from pipeline.graph.quantization.quantizer import quantize
from pipeline.graph.quantization.weights.weight_encodings import symmetric
from pipeline.model import Json, StageInput
from tests.support.graphs import graph, outputs, save
from tests.support.sentences import BUCKETS, CALLS
from tests.support.stage_runs import Component

WIDE = Rule(ops=("Softmax",), activations="uint16")
FP16 = Rule(ops=("Softmax",), precision="fp16")


def indexed(quantized: StageInput) -> GraphIndex:
    return GraphIndex(load_graph(quantized.folder / "model.onnx"), quantized.folder)


def only(index: GraphIndex, op: str) -> NodeProto:
    (node,) = (node for node in index.model.graph.node if node.op_type == op)
    assert isinstance(node, NodeProto)
    return node


def read_as(index: GraphIndex, node: NodeProto, position: int = 0) -> str:
    """The type of the integers behind an input of a node, `float` if there are none."""
    maker = index.makers.get(node.input[position])
    if maker is None or maker.op_type != "DequantizeLinear":
        return "float"
    return str(TensorProto.DataType.Name(index.initializers[maker.input[2]].data_type)).lower()


def made_as(index: GraphIndex, node: NodeProto) -> str:
    (reader,) = index.readers[node.output[0]]
    if reader.op_type != "QuantizeLinear":
        return "float"
    return str(TensorProto.DataType.Name(index.initializers[reader.input[2]].data_type)).lower()


def conversions(index: GraphIndex) -> list[str]:
    """The Q nodes that read what a DQ node gives."""
    nodes = [node for node in index.model.graph.node if node.op_type == "QuantizeLinear"]
    return [node.name for node in nodes if index.maker(node.input[0]) is None and _dequantized(index, node.input[0])]


def _dequantized(index: GraphIndex, name: str) -> bool:
    maker = index.makers.get(name)
    return maker is not None and maker.op_type == "DequantizeLinear"


def accuracy_db(component: Component, quantized: StageInput) -> float:
    """Of a QDQ model of bucket 8."""
    call = CALLS[2]
    truth = outputs(component.ingest.folder / "model.onnx", call)["hidden"]
    tested = outputs(quantized.folder / "model.onnx", call)["hidden"]
    return float(10 * np.log10((truth**2).sum() / ((tested - truth) ** 2).sum()))


def test_four_bits_take_half_the_bytes_of_eight(component: Component, ranges: StageInput) -> None:
    four = component.quantize("8", ranges, weights="int4")
    eight = component.quantize("8", ranges, weights="int8")

    assert four.facts["scheme"] == "w4a16"
    wq = indexed(four).initializers["wq_quantized"]
    assert wq.data_type == TensorProto.INT4
    assert byte_size(wq) * 2 == byte_size(indexed(eight).initializers["wq_quantized"])
    assert {entry.key: entry.value for entry in indexed(four).initializers["w1_quantized"].external_data}["length"] == (
        str(32 * 64 // 2)
    )
    blobs = [quantized.files["net_weights.bin"].bytes for quantized in (four, eight)]
    assert blobs[0] < blobs[1] - 3000
    assert accuracy_db(component, four) > 12


def test_four_bits_are_for_products_only(
    component: Component, ranges: StageInput, capsys: pytest.CaptureFixture[str]
) -> None:
    quantized = component.quantize("8", ranges, weights="int4")

    types = {name: tensor.data_type for name, tensor in indexed(quantized).initializers.items()}
    assert types["words_quantized"] == TensorProto.UINT8, "a table of rows"
    assert types["gamma_quantized"] == TensorProto.UINT8
    constants = quantized.facts["constants"]
    assert isinstance(constants, dict)
    assert constants["int4"] == {"tensors": 5, "bytes": (3 * 32 * 32 + 2 * 32 * 64) // 2}
    assert "5 in int4" in capsys.readouterr().out


def test_a_scale_of_four_bits_is_searched_for() -> None:
    columns = np.random.default_rng(0).standard_t(4, size=(256, 16)).astype(np.float32)

    stored = symmetric(columns, "int4", 1)

    widest = np.abs(columns).max(axis=0) / 7
    plain = np.clip(np.rint(columns / widest), -8, 7) * widest
    errors = [((columns - rounded) ** 2).sum(axis=0) for rounded in (stored.real(), plain)]
    assert (errors[0] <= errors[1]).all()
    assert errors[0].sum() < 0.75 * errors[1].sum()
    assert stored.scale.shape == (16,)


def test_a_rule_widens_what_operators_compute_in(component: Component, ranges: StageInput) -> None:
    index = indexed(component.quantize("8", ranges, activations="uint8", rules=[WIDE]))

    softmax = only(index, "Softmax")
    assert (read_as(index, softmax), made_as(index, softmax)) == ("uint16", "uint16")
    assert len(conversions(index)) == 2, "into the Softmax and out of it"
    products = [node for node in index.model.graph.node if node.op_type == "MatMul"]
    assert {read_as(index, node) for node in products} == {"uint8"}


def test_of_two_rules_the_later_wins(component: Component, ranges: StageInput) -> None:
    rules = [Rule(nodes=("*",), activations="uint8", weights="int4"), Rule(ops=("MatMul",), weights="int8"), WIDE]
    quantized = component.quantize("8", ranges, rules=rules)

    index = indexed(quantized)
    assert quantized.facts["scheme"] == "w8a16 mixed"
    assert index.initializers["wq_quantized"].data_type == TensorProto.INT8
    assert read_as(index, only(index, "Softmax")) == "uint16"
    assert read_as(index, only(index, "LayerNormalization")) == "uint8"


def test_what_moves_data_keeps_the_type_of_what_it_moves(component: Component, ranges: StageInput) -> None:
    (key,) = (node.name for node in component_nodes(component) if node.output[0] == "key")
    index = indexed(
        component.quantize("8", ranges, activations="uint8", rules=[Rule((), (key,), activations="uint16")])
    )

    assert read_as(index, only(index, "Transpose")) == "uint16"
    assert made_as(index, only(index, "Transpose")) == "uint16"


def component_nodes(component: Component) -> list[NodeProto]:
    return list(load_graph(component.rewrite["8"].folder / "model.onnx").graph.node)


def test_a_rule_about_a_value_changes_that_value_alone(component: Component, ranges: StageInput) -> None:
    index = indexed(component.quantize("8", ranges, rules=[Rule(tensors=("weights",), activations="uint8")]))

    assert made_as(index, only(index, "Softmax")) == "uint8"
    assert read_as(index, only(index, "Softmax")) == "uint16"
    (context,) = (node for node in index.model.graph.node if node.output[0] == "context")
    assert read_as(index, context, 0) == "uint8"
    # The right operand may not be wider than the left one.
    assert read_as(index, context, 1) == "uint8"


def test_a_rule_about_a_table_makes_it_smaller(component: Component, ranges: StageInput) -> None:
    quantized = component.quantize("8", ranges, rules=[Rule(tensors=("words",), weights="uint8")])

    index = indexed(quantized)
    assert index.initializers["words_quantized"].data_type == TensorProto.UINT8
    assert made_as(index, index.makers["tokens"]) == "uint8"
    assert accuracy_db(component, quantized) > 25


@pytest.mark.parametrize("weights", ["uint8", "int4"])
def test_a_table_that_a_rule_wants_in_16_bits_has_16(component: Component, ranges: StageInput, weights: str) -> None:
    rules = [Rule(ops=("Gather",), weights="int16")]
    index = indexed(component.quantize("8", ranges, weights=weights, rules=rules))

    assert index.initializers["words_quantized"].data_type == TensorProto.UINT16
    assert made_as(index, index.makers["tokens"]) == "uint16"


def test_nodes_in_float_stand_between_conversions(component: Component, ranges: StageInput) -> None:
    quantized = component.quantize("8", ranges, activations="uint8", rules=[FP16])

    index = indexed(quantized)
    softmax = only(index, "Softmax")
    # QNN would take DQ, Softmax, Q for a quantized Softmax.
    wide = index.makers[softmax.input[0]]
    narrow = index.makers[wide.input[0]]
    assert (narrow.op_type, narrow.attribute[0].i) == ("Cast", TensorProto.FLOAT16)
    assert _dequantized(index, narrow.input[0])
    assert [reader.op_type for reader in index.readers[softmax.output[0]]] == ["QuantizeLinear"]
    assert quantized.facts["float_nodes"] == [f"'{softmax.name}' (Softmax)"]


def test_nodes_in_float_hand_each_other_floats_and_keep_their_weights(component: Component, ranges: StageInput) -> None:
    rule = Rule(ops=("MatMul", "Gelu", "Add"), precision="fp16")
    index = indexed(component.quantize("8", ranges, rules=[rule]))

    assert index.initializers["w1"].data_type == TensorProto.FLOAT
    assert "w1_quantized" not in index.initializers
    (gelu,) = (node for node in index.model.graph.node if node.op_type == "Gelu")
    assert index.makers[gelu.input[0]].op_type == "Add"


def test_products_of_two_activations_are_wide_where_asked_for(component: Component, ranges: StageInput) -> None:
    narrow, wide = (component.quantize("8", ranges, wide_products=asked) for asked in (False, True))

    for quantized, kind in ((narrow, "uint16"), (wide, "int16")):
        index = indexed(quantized)
        (scores,) = (node for node in index.model.graph.node if node.output[0] == "scores")
        assert (read_as(index, scores, 0), read_as(index, scores, 1)) == ("uint16", kind)
    zero_point = indexed(wide).constant("turned_int16_zero_point")
    assert zero_point is not None
    assert zero_point == 0, "HTP takes int16 with zero in the middle only"


@pytest.mark.parametrize(
    "scheme",
    [
        Scheme("uint16", "int4", per_channel=True),
        Scheme("uint8", "int8", per_channel=True, overrides=(WIDE, Rule(nodes=("MatMul*",), weights="int4"))),
        Scheme("uint16", "uint8", per_channel=True, overrides=(FP16,), wide_products=True),
    ],
    ids=lambda scheme: scheme.name,
)
def test_all_buckets_have_the_same_encodings_and_weights(
    component: Component, ranges: StageInput, scheme: Scheme
) -> None:
    asked: dict[str, Any] = {"activations": scheme.activations, "weights": scheme.weights, "rules": scheme.overrides}
    short, long = (
        component.quantize(bucket, ranges, wide_products=scheme.wide_products, **asked) for bucket in BUCKETS
    )

    assert short.files["net_weights.bin"] == long.files["net_weights.bin"]
    of_short, of_long = (
        {name: tensor_array(tensor, each.folder).tobytes() for name, tensor in indexed(each).initializers.items()}
        for each in (short, long)
    )
    assert of_short.keys() == of_long.keys() - {"weights_apart_least"}  # for 16 rows alone; HTP misplaces so many
    assert [name for name, data in of_short.items() if data != of_long[name]] == ["positions_quantized"]


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (Rule(ops=("SoftMax",), activations="uint8"), "no operator .* named 'SoftMax'; did you mean 'Softmax'"),
        (Rule(nodes=("/layer.9/*",), weights="int4"), r"no node .* named '/layer.9/\*'"),
        (Rule(tensors=("wordz",), weights="uint8"), "no value .* named 'wordz'; did you mean 'words'"),
        (Rule(nodes=("*",)), "a rule changes nothing"),
        (Rule(activations="uint8"), "a rule has to name its places in one way"),
        (Rule(ops=("Add",), nodes=("*",), activations="uint8"), "a rule has to name its places in one way"),
        (Rule(ops=("MatMul",), weights="int4", precision="fp16"), "a rule says precision: fp16 and weights at once"),
        (Rule(tensors=("weights",), precision="fp16"), "a value alone can't be fp16"),
        (Rule(ops=("Softmax",), weights="int4"), "a rule is about weights where there are none"),
        (Rule(tensors=("weights",), per_channel=False), "a rule is about weights where there are none"),
        (Rule(tensors=("wq",), activations="uint8"), "a rule gives weights a type of activations"),
    ],
)  # fmt: skip
def test_a_rule_that_can_not_be_followed_is_refused(
    component: Component, ranges: StageInput, rule: Rule, text: str
) -> None:
    with pytest.raises(QuantizationError, match=text) as caught:
        component.quantize("8", ranges, rules=[WIDE, rule])
    assert "rule 2 of 'overrides'" in caught.value.where
    assert caught.value.remedy


def test_a_scheme_survives_json() -> None:
    rules = (WIDE, FP16, Rule(tensors=("a", "b*"), weights="int4", per_channel=False))
    scheme = Scheme("uint8", "int8", per_channel=False, overrides=rules, wide_products=True)
    assert Scheme.from_json(scheme.to_json()) == scheme
    bare: dict[str, Json] = {"activations": "uint16", "weights": "int4", "per_channel": True}
    assert Scheme.from_json(bare) == Scheme("uint16", "int4", per_channel=True)


def test_brackets_of_a_name_stand_for_themselves() -> None:
    rule = Rule(nodes=("/blocks[0]/*",), precision="fp16")
    assert rule.matches_node("Add", "/blocks[0]/Add")
    assert not rule.matches_node("Add", "/blocks0/Add")


def quantized_graph(
    text: str, weights: dict[str, Any], folder: Path, *rules: Rule
) -> tuple[ModelProto, NDArray[Any], NDArray[Any]]:
    """A graph with input x float32 [1, 4, 8] and output y; its QDQ form, and what both give."""
    path = save(graph(text, weights), folder)
    feeds = {"x": np.random.default_rng(1).normal(size=(1, 4, 8)).astype(np.float32)}
    found = {name: Range.of(array).with_zero() for name, array in Observer(path).arrays(feeds)}
    quantized = quantize(load_graph(path), folder, found, Scheme("uint16", "uint8", True, overrides=rules)).model
    return quantized, outputs(path, feeds)["y"], outputs(quantized, feeds)["y"]


CLAMPS = {
    "behind a convolution": ("c = Conv (x, w) y = Relu (c)", 0),
    "two in a row": ("c = Conv (x, w) r = Relu (c) y = Clip (r, , top)", 0),
    "before another clamp": ("c = Conv (x, w) k = Clip (c, low, top) y = Relu (k)", 1),
    "what it bounds is read elsewhere": ("c = Conv (x, w) r = Relu (c) y = Add (r, c)", 1),
    "behind what moves data": ("t = Reshape (x, same) r = Relu (t) y = Conv (r, w)", 1),
    "a bound above zero": ("c = Conv (x, w) y = Clip (c, top)", 1),
    "behind a sum with zeros": ("c = Conv (x, w) s = Add (c, none) y = Relu (s)", 1),
    "behind less than an encoding holds": ("c = Conv (x, w) s = Sub (c, little) y = Relu (s)", 1),
    "behind a quotient by one": ("c = Conv (x, w) s = Div (c, one) y = Relu (s)", 1),
    "behind a sum": ("c = Conv (x, w) s = Add (c, top) y = Relu (s)", 0),
    "behind a product": ("c = Conv (x, w) s = Mul (c, top) y = Relu (s)", 0),
    "behind what wraps": ("c = CumSum (x, two) y = Relu (c)", 1),
    "a bound that is computed": ("c = Conv (x, w) m = ReduceMean <keepdims = 0> (c) y = Clip (c, , m)", 1),
}


@pytest.mark.parametrize("case", CLAMPS)
def test_a_clamp_is_dropped_where_the_encoding_does_its_work(case: str, tmp_path: Path) -> None:
    body, kept = CLAMPS[case]
    weights = {
        "w": np.random.default_rng(0).normal(size=(4, 4, 1)).astype(np.float32), "top": np.float32(1.5),
        "same": np.array([1, 4, 8]), "none": np.zeros(8, np.float32), "little": np.float32(1e-12),
        "one": np.float32(1), "two": np.array(2), "low": np.float32(-1.5),
    }  # fmt: skip
    text = f"g (float[1,4,8] x) => (float[1,4,8] y) {{ {body} }}"
    used = {name: array for name, array in weights.items() if re.search(rf"\b{name}\b", body)}

    model, truth, tested = quantized_graph(text, used, tmp_path)

    assert sum(node.op_type in ("Relu", "Clip") for node in model.graph.node) == kept
    np.testing.assert_allclose(tested, truth, atol=0.05)


def test_a_bias_of_many_times_its_weight_is_kept(tmp_path: Path) -> None:
    weights = {"w": np.full((4, 4, 1), 1e-7, np.float32), "b": np.linspace(50, 100, 4, dtype=np.float32)}
    text = "g (float[1,4,8] x) => (float[1,4,8] y) { y = Conv (x, w, b) }"
    _, truth, tested = quantized_graph(text, weights, tmp_path)
    np.testing.assert_allclose(tested, truth, rtol=1e-3)


def test_quiet_weights_are_kept(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).normal(size=(8, 3)) * 1e-6
    text = "g (float[1,4,8] x) => (float[1,4,3] y) { y = MatMul (x, w) }"
    _, truth, tested = quantized_graph(text, {"w": weight.astype(np.float32)}, tmp_path)
    assert np.abs(tested - truth).max() < 0.02 * np.abs(truth).max()


def test_a_constant_that_is_no_number_is_named(tmp_path: Path) -> None:
    weights = {"w": np.array([[np.nan] * 3] * 8, np.float32)}
    path = save(graph("g (float[1,4,8] x) => (float[1,4,3] y) { y = MatMul (x, w) }", weights), tmp_path)
    known = {"x": Range(0.0, 1.0), "y": Range(0.0, 1.0)}
    with pytest.raises(QuantizationError, match=r"(?s)constant 'w' holds NaN or infinity.*\(MatMul\)"):
        quantize(load_graph(path), tmp_path, known, Scheme("uint16", "uint8", per_channel=True))


def test_an_infinity_that_maxima_start_from_is_named(tmp_path: Path) -> None:
    """A readout of torch's scatter_reduce: the encoding of the result, which the start shares, was a bug."""
    text = """g (float[4,3] x, int64[4,3] places) => (float[1,3] y) {
        y = ScatterElements <axis = 0, reduction = "max"> (start, places, x)
    }"""
    path = save(graph(text, {"start": np.full((1, 3), -np.inf, np.float32)}), tmp_path)
    known = {"x": Range(0.0, 1.0), "y": Range(0.0, 1.0)}
    named = r"(?s)constant 'start' holds NaN or infinity.*\(ScatterElements\)"
    with pytest.raises(QuantizationError, match=named) as caught:
        quantize(load_graph(path), tmp_path, known, Scheme("uint16", "uint8", per_channel=True))
    assert "a finite start in its place, below all that maxima are taken of" in caught.value.remedy


@pytest.mark.parametrize("mover", ["r = Reshape (x, shape)", "r, rest = Split <axis = 1> (x)"])
def test_an_input_that_only_movers_read_is_no_integer_where_all_is_in_float(mover: str, tmp_path: Path) -> None:
    """A Split or Reshape in front of everything took its input as 16 bits, which end where calibration did."""
    text = f"g (float[1,8] x) => (float[rows,4] y) {{ {mover} y = MatMul (r, w) }}"
    constants = {"w": np.ones((4, 4), np.float32), "shape": np.array([2, 4])}
    net = Component(tmp_path, graph(text, constants), {"all": {}})
    small, large = ({"x": np.full((1, 8), size, np.float32)} for size in (1.0, 100.0))
    everywhere = Rule(nodes=("*",), precision="fp16")

    quantized = net.quantize("all", net.calibrate([small]), rules=[everywhere])

    assert not {node.op_type for node in indexed(quantized).model.graph.node} & {"QuantizeLinear", "DequantizeLinear"}
    assert outputs(quantized.folder / "model.onnx", large)["y"][0, 0] == 400
