"""Write reductions that QNN doesn't have with ReduceSum.

Before and after::

    ReduceSumSquare(x)       ReduceSum(Mul(x, x))
    ReduceL1(x)              ReduceSum(Abs(x))
    ReduceLogSum(x)          Log(ReduceSum(x))

QNN EP 2.7 leaves each of them to the CPU, a partition more each time. The result keeps its name. Left alone: types
other than float32, and axes that are computed.
"""

from __future__ import annotations

from pathlib import Path

from onnx import ModelProto, NodeProto, TensorProto

from pipeline.graph.ir.index import GraphIndex, is_op, substitute
from pipeline.graph.ir.node_builder import Additions
from pipeline.graph.ir.reductions import keeps_axes, reduced_axes

NAME = "decompose_reductions"


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
    return (
        is_op(node, "ReduceSumSquare", "ReduceL1", "ReduceLogSum")
        and index.types[node.output[0]].tensor_type.elem_type == TensorProto.FLOAT
        and reduced_axes(index, node) is not None
    )


def _replace(index: GraphIndex, added: Additions, node: NodeProto) -> None:
    source, result = node.input[0], node.output[0]
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
