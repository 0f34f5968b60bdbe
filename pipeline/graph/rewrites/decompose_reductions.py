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

from collections.abc import Sequence

from onnx import NodeProto

from pipeline.graph.ir.attributes import integer
from pipeline.graph.ir.index import is_float32, is_op
from pipeline.graph.ir.node_builder import Additions, each_node
from pipeline.graph.ir.reductions import keeps_axes, reduced_axes

_SMALLEST = 2.0**-126


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace a ReduceSumSquare, ReduceL1, ReduceLogSum, or LpNormalization by sums of magnitudes."""
    kinds = ("LpNormalization", "ReduceL1", "ReduceLogSum", "ReduceSumSquare")
    if not is_op(node, *kinds) or not is_float32(added.index, node.output[0]):
        return False
    if node.op_type == "LpNormalization":
        return integer(node, "p", 2) == 1 and _divide(added, node)
    reduced = reduced_axes(added.index, node)
    return reduced is not None and _replace(added, node, reduced)


def _replace(added: Additions, node: NodeProto, reduced: Sequence[int]) -> bool:
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


def _divide(added: Additions, node: NodeProto) -> bool:
    source, result = node.input[0], node.output[0]
    axis = added.integers(f"{result}_axis", integer(node, "axis", -1) % len(added.shape(source)))
    size = added.op("Abs", source, out=f"{result}_size")
    total = added.op("ReduceSum", size, axis, out=f"{result}_sum", keepdims=1)
    least = added.number(f"{result}_least", _SMALLEST)
    added.replace("Div", source, added.op("Max", total, least, out=f"{result}_divisor"), out=result)
    return True
