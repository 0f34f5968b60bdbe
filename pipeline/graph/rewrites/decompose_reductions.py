"""Write reductions that QNN doesn't have, and norms by them, with ReduceSum.

Before and after::

    ReduceSumSquare(x)       ReduceSum(Mul(x, x))
    ReduceL1(x)              ReduceSum(Abs(x))
    ReduceLogSum(x)          Log(ReduceSum(x))
    LpNormalization(x, p=1)  Div(x, Max(ReduceSum(Abs(x)), 2**-126))

2**-126 is the smallest normal float32: what is all zeros stays that, as ONNX Runtime has it.

QNN EP 2.7 leaves each of them to the CPU, a partition more each time. The result keeps its name. Left alone: types
other than float32, and axes that are computed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from pipeline.graph.ir.index import GraphIndex, element_type, is_op, substitute
from pipeline.graph.ir.node_builder import Additions
from pipeline.graph.ir.reductions import keeps_axes, reduced_axes

NAME = "decompose_reductions"

_SMALLEST = 2.0**-126


def apply(model: ModelProto, folder: Path) -> int:
    """Replace every such reduction; returns their number."""
    index = GraphIndex(model, folder)
    added = Additions(index)
    found = [node for node in model.graph.node if _matches(index, node)]
    for node in found:
        _replace(index, added, node)
    if found:
        substitute(model, found, added.finish())
    return len(found)


def _matches(index: GraphIndex, node: NodeProto) -> bool:
    if not is_op(node, "LpNormalization", "ReduceL1", "ReduceLogSum", "ReduceSumSquare"):
        return False
    if element_type(index, node.output[0]) != TensorProto.FLOAT:
        return False
    if node.op_type == "LpNormalization":
        return _attribute(node, "p", 2) == 1
    return reduced_axes(index, node) is not None


def _attribute(node: NodeProto, name: str, default: int) -> int:
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == name), default)


def _replace(index: GraphIndex, added: Additions, node: NodeProto) -> None:
    source, result = node.input[0], node.output[0]
    if node.op_type == "LpNormalization":
        _divide(added, node)
        return
    axes = added.integers(f"{result}_axes", *(reduced_axes(index, node) or ()))
    keepdims = int(keeps_axes(node))
    if node.op_type == "ReduceLogSum":
        total = added.op("ReduceSum", source, axes, out=f"{result}_sum", keepdims=keepdims)
        added.replace("Log", total, out=result)
    elif node.op_type == "ReduceL1":
        size = added.op("Abs", source, out=f"{result}_size")
        added.replace("ReduceSum", size, axes, out=result, keepdims=keepdims)
    else:
        square = added.op("Mul", source, source, out=f"{result}_square")
        added.replace("ReduceSum", square, axes, out=result, keepdims=keepdims)


def _divide(added: Additions, node: NodeProto) -> None:
    source, result = node.input[0], node.output[0]
    axis = added.integers(f"{result}_axis", _attribute(node, "axis", -1) % len(added.shape(source)))
    size = added.op("Abs", source, out=f"{result}_size")
    total = added.op("ReduceSum", size, axis, out=f"{result}_sum", keepdims=1)
    least = added.constant(f"{result}_least", np.array(_SMALLEST, np.float32))
    added.replace("Div", source, added.op("Max", total, least, out=f"{result}_divisor"), out=result)
