"""Models that are quantized already, as the float models that they stand for.

HTP wants a quantization of its own, so that of a file made for CPUs is taken off when the file is taken in:
:func:`write_in_floats` turns operators on quantized values into float operators between encodings, and
:mod:`pipeline.graph.shapes.drop_rounding` lets values pass where they were rounded. Weights become the numbers that
they stood for, bounds stay, only the rounding of activations is gone (docs/adr/0039).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from onnx import ModelProto, NodeProto, TensorProto

from pipeline.errors import ModelError
from pipeline.graph.floats import blocks, dynamic, static
from pipeline.graph.floats.movers import MOVERS
from pipeline.graph.floats.rewriting import QUANTIZED, Replacing, inserted
from pipeline.graph.ir.attributes import integer
from pipeline.graph.ir.traverse import all_graphs, all_names, input_at

WRITTEN_IN_FLOATS: Mapping[str, Callable[[Replacing], None]] = {
    "ConvInteger": dynamic.write_integer_product,
    "DynamicQuantizeLSTM": dynamic.write_lstm,
    "DynamicQuantizeLinear": dynamic.write_dynamic,
    "DynamicQuantizeMatMul": dynamic.write_dynamic_product,
    "GatherBlockQuantized": blocks.write_gather,
    "MatMulBnb4": blocks.write_bnb4,
    "MatMulInteger": dynamic.write_integer_product,
    "MatMulIntegerToFloat": dynamic.write_product_to_float,
    "MatMulNBits": blocks.write_matmul,
    "QAttention": dynamic.write_attention,
    "QEmbedLayerNormalization": dynamic.write_embeddings,
    "QGemm": static.write_gemm,
    "QLinearAdd": static.write_pair,
    "QLinearAveragePool": static.write_single,
    "QLinearConcat": static.write_concat,
    "QLinearConv": static.write_conv,
    "QLinearGlobalAveragePool": static.write_single,
    "QLinearLeakyRelu": static.write_single,
    "QLinearMatMul": static.write_matmul,
    "QLinearMul": static.write_pair,
    "QLinearReduceMean": static.write_single,
    "QLinearSigmoid": static.write_single,
    "QLinearSoftmax": static.write_single,
    "QLinearWhere": static.write_where,
}
"""Operators on quantized values, and what writes each in floats."""

_PRODUCTS = ("ConvInteger", "MatMulInteger")
"""Operators that give int32."""

_LINEAR = ("Cast", "Mul", "Sub")
"""What else may read a value whose range is found at run time: what gives the same for the value itself."""

ENCODINGS = ("QuantizeLinear", "DequantizeLinear")
"""Operators between floats and quantized values: what they round is let pass once constants are folded."""


def write_in_floats(model: ModelProto) -> int:
    """Write operators on quantized values as float operators, in place; returns their number, encodings included.

    The model must be of opset 13 or later, its functions inlined.

    Raises:
        ModelError: one is used in a way that is not known here.
    """
    counted, taken = 0, all_names(model.graph)
    tensors: dict[str, TensorProto] = {}
    real: set[str] = set()
    products: dict[str, bool] = {}
    makers: dict[str, NodeProto] = {}
    kinds: dict[str, int] = {}
    for graph in all_graphs(model.graph):  # outer before inner, so that constants of the outer are known
        tensors |= {tensor.name: tensor for tensor in graph.initializer}
        nodes: list[NodeProto] = []
        constants: list[TensorProto] = []
        kinds |= {value.name: value.type.tensor_type.elem_type for value in graph.input}
        counted += sum(node.op_type in ENCODINGS for node in graph.node)
        for node in graph.node:
            makers |= dict.fromkeys(node.output, node)
            if node.op_type in _PRODUCTS:
                products[node.output[0]] = node.input[0] in real
            if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
                tensors[node.output[0]] = node.attribute[0].t
            kinds |= dict.fromkeys(node.output, _kind(node, kinds, tensors))
            write = WRITTEN_IN_FLOATS.get(node.op_type)
            if node.op_type == "DequantizeLinear" and node.input[0] in real:
                write = _pass
            if node.op_type == "Add" and not products.keys().isdisjoint(node.input):
                write = partial(dynamic.write_sum, products=products, maker=makers.get)
            if write is None and real.isdisjoint(node.input):
                nodes.append(node)
                continue
            made = Replacing(node, real, tensors.get, kinds, taken)
            if write is None:
                made.refuse_unless(
                    node.op_type in (*MOVERS, *_LINEAR), "the scale of what it reads is found at run time"
                )
                real.update(node.output if node.op_type in MOVERS else ())
                nodes.append(node)
                continue
            try:
                write(made)
            except (ArithmeticError, LookupError, ValueError):  # dims of another number, an attribute of another type
                raise made.refused("its inputs and attributes don't go together") from None
            nodes += made.nodes
            constants += made.constants
            counted += 1
        for value in graph.output:
            if value.name in real:
                raise _stays_quantized(value.name)
        if constants or len(nodes) != len(graph.node):
            inserted(graph, nodes, constants)
    return counted


def _kind(node: NodeProto, kinds: Mapping[str, int], tensors: Mapping[str, TensorProto]) -> int:
    """The type of what a node gives, if that is quantized; 0 for others."""
    known = [tensors[name].data_type if name in tensors else kinds.get(name, 0) for name in node.input]
    if node.op_type == "QuantizeLinear":
        return known[2] if input_at(node, 2) else integer(node, "output_dtype") or TensorProto.UINT8
    if node.op_type in MOVERS or node.op_type.startswith("QLinear") or node.op_type == "QGemm":
        return next((kind for kind in known if kind in QUANTIZED), 0)
    return 0


def _stays_quantized(output: str) -> ModelError:
    return ModelError(
        f"output {output!r} is quantized by a scale that is found at run time",
        why="HTP's scales are fixed when a model is compiled",
        remedy="name the float file that this one was made of; on the hub it is usually 'onnx/model.onnx'",
    )


def _pass(made: Replacing) -> None:
    """DequantizeLinear of what was never quantized."""
    made.give(made.number(made.given(0), made.given(1), made.given(2)))
