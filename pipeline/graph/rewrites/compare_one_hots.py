"""Write a one-hot vector as a comparison with every place.

Before, and after for values off and on::

    OneHot(indices, depth, [off, on])        Cast(Equal(indices, places), to float) * (on - off) + off

`places` are 0 to depth - 1 along the new axis. QNN EP 2.7 takes a OneHot whose values are constants alone, which those
of a quantized graph are not: each such node stayed on the CPU, and in float16 beside integers it gave 0.5 for 0. One of
integers, as torch's older exporter writes `one_hot`, stays on the CPU in front of floats and is not compiled ("out of
memory") in front of a sum: its comparison is cast to int32 first.

The result keeps its name. Left alone: other types, and a computed depth or computed values.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto, helper

from pipeline.graph.ir.attributes import integer
from pipeline.graph.ir.index import FLOATS, element_type, is_op
from pipeline.graph.ir.node_builder import Additions, each_node

AFTER = {"count_indices_from_the_front": "a negative index is counted there, one that is beyond both ends has no place"}
"""What runs before, and why."""

_INTEGERS = (TensorProto.INT32, TensorProto.INT64)


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace a OneHot of floats or integers."""
    if not is_op(node, "OneHot") or element_type(added.index, node.output[0]) not in (*FLOATS, *_INTEGERS):
        return False
    indices, result = str(node.input[0]), str(node.output[0])
    depth, values = added.index.scalar(node.input[1]), added.index.constant(node.input[2])
    if depth is None or values is None:
        return False
    rank = len(added.shape(result))
    axis = integer(node, "axis", -1) % rank
    dims = [1] * rank
    dims[axis] = int(depth)
    if element_type(added.index, indices) != TensorProto.INT32:
        indices = added.op("Cast", indices, out=f"{result}_whole", to=TensorProto.INT32)
    apart = added.op("Reshape", indices, _opened(added, result, axis), out=f"{result}_apart")
    places = added.constant(f"{result}_places", np.arange(int(depth), dtype=np.int32).reshape(dims))
    there = added.op("Equal", apart, places, out=f"{result}_there")
    off, on = (values.dtype.type(each) for each in values)
    kind = helper.np_dtype_to_tensor_dtype(values.dtype)
    if kind == TensorProto.INT64:
        there = added.op("Cast", there, out=f"{result}_whole", to=TensorProto.INT32)
    if (off, on) == (0, 1):
        added.replace("Cast", there, out=result, to=kind)
        return True
    share = added.op("Cast", there, out=f"{result}_share", to=kind)
    step = added.number(f"{result}_step", on - off, values.dtype.type)
    if off == 0:
        added.replace("Mul", share, step, out=result)
        return True
    scaled = added.op("Mul", share, step, out=f"{result}_scaled")
    added.replace("Add", scaled, added.number(f"{result}_off", off, values.dtype.type), out=result)
    return True


def _opened(added: Additions, result: str, axis: int) -> str:
    """The shape of the indices, with one place along the new axis."""
    dims = list(added.shape(result))
    dims[axis] = 1
    return added.integers(f"{result}_opened", *dims)
