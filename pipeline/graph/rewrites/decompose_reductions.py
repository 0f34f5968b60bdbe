"""Write reductions that QNN doesn't have with ReduceSum.

Before and after::

    ReduceSumSquare(x)       ReduceSum(Mul(x, x))
    ReduceL1(x)              ReduceSum(Abs(x))
    ReduceLogSum(x)          Log(ReduceSum(x))

QNN EP 2.7 leaves each of them to the CPU, a partition more each time. The result keeps its name. Left alone: types
other than float32, and axes that are computed.
"""

from __future__ import annotations

from onnx import NodeProto

from pipeline.graph.ir.index import is_float32, is_op
from pipeline.graph.ir.node_builder import Additions, each_node
from pipeline.graph.ir.reductions import keeps_axes, reduced_axes


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace a ReduceSumSquare, ReduceL1 or ReduceLogSum."""
    if not is_op(node, "ReduceSumSquare", "ReduceL1", "ReduceLogSum") or not is_float32(added.index, node.output[0]):
        return False
    reduced = reduced_axes(added.index, node)
    if reduced is None:
        return False
    source, result = node.input[0], node.output[0]
    axes = added.integers(f"{result}_axes", *reduced)
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
    return True
