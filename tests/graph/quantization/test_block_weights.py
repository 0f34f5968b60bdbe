"""Weights in blocks, as far as the QDQ model shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from onnx import NodeProto, TensorProto

from pipeline.contracts.scheme import Rule, Scheme
from pipeline.errors import QuantizationError
from pipeline.graph.accuracy.emulation.emulation_cost import run_s, sample_s
from pipeline.graph.cpu import load_session, run
from pipeline.graph.files.model_file import load_graph
from pipeline.graph.ir.index import GraphIndex, opset
from pipeline.graph.quantization.qdq.qdq_model import dequantized_constant, is_dequantized_constant
from pipeline.graph.quantization.qdq.weights_by_channel import count_in_blocks, write_by_channel
from pipeline.model import StageInput
from tests.support.graphs import graph
from tests.support.sentences import BUCKETS, CALLS
from tests.support.stage_runs import Component, part

BLOCKS = Scheme("uint16", "int8", per_channel=True, block=16)
LOOKING = replace(BLOCKS, rounding="gptq", clip="hessian")


def constants(**shapes: tuple[int, ...]) -> Mapping[str, ArrayLike]:
    made = np.random.default_rng(3)
    return {name: made.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def indexed(made: StageInput) -> GraphIndex:
    return GraphIndex(load_graph(made.folder / "model.onnx"), made.folder)


def weight_of(index: GraphIndex, node: NodeProto) -> tuple[str, tuple[int, ...], int]:
    """Type of a node's weight, shape of its scales, and size of its blocks."""
    maker = index.makers[node.input[1]]
    attributes = {attribute.name: attribute.i for attribute in maker.attribute}
    kind = TensorProto.DataType.Name(index.initializers[maker.input[0]].data_type).lower()
    assert index.initializers[maker.input[2]].dims == index.initializers[maker.input[1]].dims
    return kind, tuple(index.initializers[maker.input[1]].dims), attributes.get("block_size", 0)


MIXED = """
net (float[1, 32, 6, 6] x) => (float[36, 8] y)
{
  a = Conv (x, w1, b1)
  b = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (a, w3)
  c = Conv <group = 2> (b, wg)
  d = Conv (c, odd)
  e = Conv (d, even)
  f = Reshape (e, rows)
  m = ReduceMean <axes = [1], keepdims = 1> (f)
  n = Sub (f, m)
  h = Gemm <transB = 1> (n, wt, bt)
  p, q = Split <axis = 1> (h)
  r = Add (p, q)
  y = Gemm <beta = 0.5> (r, wn, bn)
}
"""


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Component:
    given = constants(
        w1=(32, 32, 1, 1), b1=(32,), w3=(32, 32, 3, 3), wg=(32, 16, 1, 1), odd=(24, 32, 1, 1), even=(32, 24, 1, 1),
        wt=(64, 32), bt=(64,), wn=(32, 8), bn=(8,),
    )  # fmt: skip
    model = graph(MIXED, {**given, "rows": np.array([-1, 32], np.int64)})
    return Component(tmp_path_factory.mktemp("mixed"), model, {"all": {}})


ROWS = """
net (float[1, 32, 10] x) => (float[1, 24, 2, 5] y)
{
  a = Conv (x, w)
  p = Reshape (a, planes)
  y = Conv (p, w2)
}
"""


def test_a_convolution_over_rows_has_none(tmp_path: Path) -> None:
    given = {**constants(w=(32, 32, 1), w2=(24, 32, 1, 1)), "planes": np.array([1, 32, 2, 5], np.int64)}
    component = Component(tmp_path, graph(ROWS, given), {"all": {}})
    rows = [{"x": np.random.default_rng(5).normal(size=(1, 32, 10)).astype(np.float32)}]
    index = indexed(part(component.quantize_all(component.calibrate(rows), BLOCKS), "all"))
    found = [weight_of(index, node) for node in index.model.graph.node if node.op_type == "Conv"]
    assert found == [("int8", (32,), 0), ("int8", (24, 2, 1, 1), 16)]


NORM = """
net (float[1, 8, 32] x) => (float[1, 8, 24] y)
{
  two = Constant <value = float {2.0}> ()
  square = Pow (x, two)
  mean = ReduceMean <axes = [-1]> (square)
  shifted = Add (mean, epsilon)
  root = Sqrt (shifted)
  scaled = Div (x, root)
  normal = Mul (gamma, scaled)
  y = MatMul (normal, w)
}
"""


def test_a_norm_that_is_onnxruntime_s_own_goes_with_blocks(tmp_path: Path) -> None:
    """As T5 and Llama have it: the chip takes it as SimplifiedLayerNormalization, which ONNX does not know."""
    given = {**constants(gamma=(32,), w=(32, 24)), "epsilon": np.array(1e-6, np.float32)}
    component = Component(tmp_path, graph(NORM, given, opset=17), {"all": {}})
    rows = [{"x": np.random.default_rng(5).normal(size=(1, 8, 32)).astype(np.float32)}]
    index = indexed(part(component.quantize_all(component.calibrate(rows), BLOCKS), "all"))
    kinds = [node.op_type for node in index.model.graph.node]
    assert "SimplifiedLayerNormalization" in kinds
    (product,) = (node for node in index.model.graph.node if node.op_type in ("MatMul", "Gemm"))
    assert weight_of(index, product) == ("int8", (2, 24), 16)
    assert opset(index.model) == 21


def pictures(count: int) -> list[dict[str, NDArray[Any]]]:
    made = np.random.default_rng(5)
    return [{"x": made.normal(size=(1, 32, 6, 6)).astype(np.float32)} for _ in range(count)]


def test_weights_are_in_blocks_where_the_compiler_takes_them(mixed: Component) -> None:
    made = mixed.quantize_all(mixed.calibrate(pictures(4)), BLOCKS)
    index = indexed(part(made, "all"))

    found = {node.name: weight_of(index, node) for node in index.model.graph.node if node.op_type in ("Conv", "Gemm")}

    assert [*found.values()] == [
        ("int8", (32, 2, 1, 1), 16),  # 1x1
        ("int8", (32,), 0),  # 3x3
        ("int8", (32,), 0),  # in groups
        ("int8", (24, 2, 1, 1), 16),
        ("int8", (32,), 0),  # 24 inputs
        ("int8", (64, 2), 16),
        ("int8", (2, 8), 16),
    ]
    assert opset(index.model) == 21


def test_a_model_of_opset_17_computes_the_same_at_21(mixed: Component) -> None:
    """Split and ReduceMean are written otherwise there."""
    feeds = pictures(4)
    ranges = mixed.calibrate(feeds)
    plain, blocks = (part(mixed.quantize_all(ranges, replace(BLOCKS, block=block)), "all") for block in (None, 16))

    truth = [run(load_session(mixed.rewrite["all"].folder / "model.onnx"), feed)["y"] for feed in feeds]
    errors = []
    for made in (plain, blocks):
        session = load_session(made.folder / "model.onnx")
        errors.append(
            sum(float(((run(session, feed)["y"] - y) ** 2).sum()) for feed, y in zip(feeds, truth, strict=True))
        )

    signal = sum(float((y**2).sum()) for y in truth)
    assert errors[0] < 1e-3 * signal
    assert errors[1] < errors[0]


def test_all_buckets_have_the_same_weights_once(component: Component, ranges: StageInput) -> None:
    correlations = component.correlate(CALLS)
    made = component.quantize_all(ranges, LOOKING, correlations=correlations)
    again = component.quantize_all(ranges, LOOKING, correlations=component.correlate(CALLS))
    one = component.quantize_all(ranges, LOOKING, ["8"], correlations=correlations)

    assert [entry.sha256 for entry in made.files.values()] == [entry.sha256 for entry in again.files.values()]
    assert made.files["net_weights.bin"] == one.files["net_weights.bin"]
    blocks = [
        weight_of(indexed(part(made, bucket)), node)
        for bucket in BUCKETS
        for node in indexed(part(made, bucket)).model.graph.node
        if node.op_type == "MatMul" and node.name.endswith("query")
    ]
    assert all(kind == ("int8", (2, 32), 16) for kind in blocks)


def test_what_looks_at_the_data_computes_more_exactly(tmp_path: Path) -> None:
    given = constants(w=(64, 48))
    component = Component(
        tmp_path, graph("net (float[1, 40, 64] x) => (float[1, 40, 48] y) { y = MatMul(x, w) }", given), {"all": {}}
    )
    samples = [{"x": np.cumsum(call["x"], axis=-1)} for call in signals(30)]
    ranges, correlations = component.calibrate(samples[:20]), component.correlate(samples[:20])
    errors = []
    for scheme in (replace(BLOCKS, weights="int4"), replace(LOOKING, weights="int4")):
        made = part(component.quantize_all(ranges, scheme, correlations=correlations), "all")
        session = load_session(made.folder / "model.onnx")
        errors.append(
            sum(float(((run(session, call)["y"] - call["x"] @ given["w"]) ** 2).sum()) for call in samples[20:])
        )
    assert errors[1] < 0.2 * errors[0]


def signals(count: int) -> list[dict[str, NDArray[Any]]]:
    made = np.random.default_rng(6)
    return [{"x": made.normal(size=(1, 40, 64)).astype(np.float32)} for _ in range(count)]


def test_a_constant_in_blocks_is_read_back_as_it_is_computed(mixed: Component) -> None:
    index = indexed(part(mixed.quantize_all(mixed.calibrate(pictures(2)), BLOCKS), "all"))
    float_index = GraphIndex(load_graph(mixed.rewrite["all"].folder / "model.onnx"), mixed.rewrite["all"].folder)
    for node in index.model.graph.node:
        if node.op_type in ("Conv", "Gemm"):
            name = index.makers[node.input[1]].output[0]
            exact = float_index.constant(name.removesuffix("_DequantizeLinear_Output"))
            assert exact is not None
            assert is_dequantized_constant(index, name, exact.shape)
            assert np.abs(dequantized_constant(index, name) - exact).max() < 0.03


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_weights_in_blocks_get_a_scale_for_each_channel_instead(
    mixed: Component, tmp_path: Path, weights: Literal["int8", "int4"]
) -> None:
    made = part(mixed.quantize_all(mixed.calibrate(pictures(2)), replace(BLOCKS, weights=weights)), "all")
    blocks = load_graph(made.folder / "model.onnx")
    path = write_by_channel(made.folder / "model.onnx", tmp_path)
    channels = load_graph(path)
    assert count_in_blocks(blocks) == 32 * 32 + 24 * 32 + 64 * 32 + 32 * 8
    assert count_in_blocks(channels) == 0
    assert [output.name for output in channels.graph.output] == [output.name for output in blocks.graph.output]
    was, now = indexed(made), GraphIndex(channels, tmp_path)
    for node in now.model.graph.node:
        if node.op_type in ("Conv", "Gemm"):
            name = now.makers[node.input[1]].output[0]
            exact, rounded = dequantized_constant(was, name), dequantized_constant(now, name)
            assert np.abs(rounded - exact).max() <= 0.501 * np.abs(exact).max() / 127
    feed = pictures(1)[0]
    one, other = (run(load_session(file), feed)["y"] for file in (made.folder / "model.onnx", path))
    assert np.abs(one - other).max() < 0.02 * np.abs(one).max()
    assert run_s(blocks) > sample_s(blocks) == run_s(channels) == sample_s(channels)


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (Rule(nodes=("*",), weights="int8", block=16), None),
        (Rule(ops=("Conv",), weights="int4", block=32), None),
        (Rule(ops=("Gemm",), weights="int8", block=16, activations="uint8"), "QNN's kernel for blocks takes 16 bits"),
        (Rule(tensors=("w3",), weights="int8", block=16), "a Conv of more than 1x1"),
        (Rule(tensors=("even",), weights="int8", block=16), "24 inputs can't be split into blocks of 16"),
    ],
)
def test_a_rule_that_no_weight_can_follow_is_refused(mixed: Component, rule: Rule, reason: str | None) -> None:
    ranges = mixed.calibrate(pictures(2))
    scheme = Scheme("uint16", "uint8", per_channel=True, overrides=(rule,))
    if reason is None:
        mixed.quantize_all(ranges, scheme)
        return
    with pytest.raises(QuantizationError) as refusal:
        mixed.quantize_all(ranges, scheme)
    assert reason in refusal.value.why
    assert "rule 1 of 'overrides'" in refusal.value.where


def test_a_table_is_not_put_into_blocks(component: Component, ranges: StageInput) -> None:
    with pytest.raises(QuantizationError, match="none can have them") as refusal:
        component.quantize_all(
            ranges, Scheme("uint16", "uint8", True, overrides=(Rule(ops=("Gather",), weights="int8", block=16),))
        )
    assert "looked up on the CPU" in refusal.value.why
