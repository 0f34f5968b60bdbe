"""Write LogSoftmax and ReduceLogSumExp with the largest value taken away first.

Before and after::

    LogSoftmax(x)           Sub(d, Log(ReduceSum(Exp(d))))      where d = Sub(x, ReduceMax(x))
    ReduceLogSumExp(x)      Add(ReduceMax(x), Log(ReduceSum(Exp(d))))

HTP (2.51, emulated) computes both wrongly in float16 where the values of a row are far apart, and leaves
ReduceLogSumExp to the CPU in 16 bits (SQNR of the context; rows over as much as the first column says)::

    apart   LogSoftmax fp16      uint8          uint16        ReduceLogSumExp fp16
    80      65.9    69.6 dB      45.7  exact    87.5  93.5    72.5  72.5 dB
    120     67.0    70.2         46.7  57.9     93.1  92.5     3.2  76.7
    400      9.1    71.7         56.5  60.5     91.4  92.7    16.9  79.3

The result keeps its name. Left alone: types other than float32; axes that are computed; five dims, in which HTP can't
bound what Exp reads (see `bound_exp`).
"""

from __future__ import annotations

from onnx import NodeProto

from pipeline.graph.ir.attributes import integer
from pipeline.graph.ir.index import GraphIndex, is_float32, is_op, opset
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.node_builder import Additions, each_node
from pipeline.graph.ir.reductions import keeps_axes, reduced_axes

_AXES_ARE_INPUTS = 18
"""The opset from which ReduceMax takes its axes as an input."""
_ONE_AXIS = 13
"""The opset from which LogSoftmax is over one axis."""
_MOST_DIMS = 4


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace a LogSoftmax or ReduceLogSumExp."""
    version = opset(added.index.model)
    axes = _axes(added.index, node, version)
    if axes is None:
        return False
    _replace(added, node, axes, version)
    return True


def _axes(index: GraphIndex, node: NodeProto, version: int) -> tuple[int, ...] | None:
    """The axes that a node to be replaced sums over."""
    if not is_op(node, "LogSoftmax", "ReduceLogSumExp") or version < _ONE_AXIS:
        return None
    rank = len(shape_of(index.types[node.input[0]]))
    if not is_float32(index, node.input[0]) or not 0 < rank <= _MOST_DIMS:
        return None
    if node.op_type == "ReduceLogSumExp":
        return reduced_axes(index, node)
    return (integer(node, "axis", -1) % rank,)


def _replace(added: Additions, node: NodeProto, axes: tuple[int, ...], version: int) -> None:
    source, result = node.input[0], node.output[0]
    given = added.integers(f"{result}_axes", *axes)
    if version >= _AXES_ARE_INPUTS:
        largest = added.op("ReduceMax", source, given, out=f"{result}_largest", keepdims=1)
    else:
        largest = added.op("ReduceMax", source, out=f"{result}_largest", axes=axes, keepdims=1)
    distance = added.op("Sub", source, largest, out=f"{result}_distance")
    exponential = added.op("Exp", distance, out=f"{result}_exp")
    total = added.op("ReduceSum", exponential, given, out=f"{result}_sum", keepdims=1)
    logarithm = added.op("Log", total, out=f"{result}_log")
    if node.op_type == "LogSoftmax":
        added.replace("Sub", distance, logarithm, out=result)
    elif keeps_axes(node):
        added.replace("Add", largest, logarithm, out=result)
    else:
        kept = added.op("Add", largest, logarithm, out=f"{result}_kept")
        added.replace("Squeeze", kept, given, out=result)
