"""Divide integers by the negative of a power of two, and turn the sign.

Before (int32 or int64, n a constant of one element, a power of two)::

    Div(x, n)

After::

    Mul(Div(x, -n), -1)

HTP (2.51, emulated) shifts in place of dividing by a power of two, and so rounds a negative quotient down where ONNX
rounds it to zero: -7 by 2 is -4 on it, and -3 in ONNX. By any other number, the negative included, it is right.

The result keeps its name. Left alone: other types, other divisors, those that are computed.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto, helper

from pipeline.graph.ir.index import GraphIndex, is_op
from pipeline.graph.ir.node_builder import Additions, each_node

_KINDS = (TensorProto.INT32, TensorProto.INT64)


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace a quotient of integers by a power of two."""
    index = added.index
    if not _matches(index, node):
        return False
    result = node.output[0]
    dtype = helper.tensor_dtype_to_np_dtype(index.types[result].tensor_type.elem_type)
    divisor = index.constant(node.input[1])
    assert divisor is not None
    negative = added.constant(f"{result}_negative", -divisor)
    minus_one = added.constant(f"{result}_minus_one", np.array(-1, dtype))
    added.replace("Mul", added.op("Div", node.input[0], negative, out=f"{result}_turned"), minus_one, out=result)
    return True


def _matches(index: GraphIndex, node: NodeProto) -> bool:
    if not is_op(node, "Div") or index.types[node.output[0]].tensor_type.elem_type not in _KINDS:
        return False
    divisor = index.constant(node.input[1])
    if divisor is None or divisor.size != 1:
        return False
    size = int(divisor.flat[0])
    return size > 1 and size & (size - 1) == 0


AFTER = {
    "compute_lengths_in_integers": "it writes quotients of integers",
    "decompose_mod": "it writes quotients of integers",
}
