"""What a static model takes to compute, in multiply-accumulates."""

from __future__ import annotations

import math
from collections.abc import Mapping

from onnx import ModelProto, NodeProto

from pipeline.graph.ir.attributes import integer
from pipeline.graph.ir.index import is_op
from pipeline.graph.ir.inference import shape_of


def macs(model: ModelProto) -> int:
    """Multiply-accumulates of all matrix products and convolutions; other nodes count one for each element made."""
    shapes = shapes_of(model)
    return sum(macs_of(node, shapes) for node in model.graph.node)


def shapes_of(model: ModelProto) -> dict[str, tuple[int, ...]]:
    """The shapes of all values and constants of a static graph, by name; also of those that only a Q or DQ node reads
    or makes, to which a QDQ model gives no type.
    """
    graph = model.graph
    shapes = {value.name: shape_of(value.type) for value in (*graph.input, *graph.value_info, *graph.output)}
    shapes |= {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    between = [node for node in graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    for node in between:
        if node.input[0] in shapes:
            shapes.setdefault(node.output[0], shapes[node.input[0]])
    for node in reversed(between):  # what becomes an output of the model has the output's shape
        if node.output[0] in shapes:
            shapes.setdefault(node.input[0], shapes[node.output[0]])
    return shapes


def macs_of(node: NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """The same for one node; `shapes` as :func:`shapes_of` gives them."""
    made = max((math.prod(shapes.get(name, ())) for name in node.output if name), default=0)
    if is_op(node, "MatMul", "Gemm"):
        given = shapes.get(node.input[0], ())
        return made * (given[0 if integer(node, "transA") else -1] if given else 1)
    if is_op(node, "Conv"):
        return made * math.prod(shapes.get(node.input[1], ())[1:])
    if is_op(node, "ConvTranspose"):
        return math.prod(shapes.get(node.input[0], ())) * math.prod(shapes.get(node.input[1], ())[1:])
    return made
