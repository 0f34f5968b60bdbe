"""What a static model takes to compute, in multiply-accumulates."""

from __future__ import annotations

import math

from onnx import ModelProto, NodeProto

from pipeline.graph.ir.index import is_op
from pipeline.graph.ir.inference import shape_of


def macs(model: ModelProto) -> int:
    """Multiply-accumulates of all matrix products and convolutions; other nodes count one for each element made."""
    return sum(macs_of_nodes(model))


def macs_of_nodes(model: ModelProto) -> list[int]:
    """The same for each node, in the graph's order."""
    graph = model.graph
    shapes = {value.name: shape_of(value.type) for value in (*graph.input, *graph.value_info, *graph.output)}
    shapes |= {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            shapes.setdefault(node.output[0], shapes.get(node.input[0], ()))
    return [_macs(node, shapes) for node in graph.node]


def _macs(node: NodeProto, shapes: dict[str, tuple[int, ...]]) -> int:
    made = max((math.prod(shapes.get(name, ())) for name in node.output if name), default=0)
    if is_op(node, "MatMul", "Gemm"):
        transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
        given = shapes.get(node.input[0], ())
        return made * (given[0 if transposed else -1] if given else 1)
    if is_op(node, "Conv"):
        return made * math.prod(shapes.get(node.input[1], ())[1:])
    if is_op(node, "ConvTranspose"):
        return math.prod(shapes.get(node.input[0], ())) * math.prod(shapes.get(node.input[1], ())[1:])
    return made
