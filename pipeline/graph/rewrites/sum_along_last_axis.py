"""Add up along the last axis: other axes are brought there and back.

Before (the axis a constant, and not the last one)::

    CumSum(x, axis)

After::

    Transpose(CumSum(Transpose(x), last))

In 8 bits HTP (2.51, emulated) adds the zero points up, too, along every axis but the last: -4.40 for 0.25. In float16
and in 16 bits it is right.

The result keeps its name. Left alone: other types, computed axes.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto

from pipeline.graph.ir.attributes import settings
from pipeline.graph.ir.index import is_float32, is_op
from pipeline.graph.ir.node_builder import Additions, each_node


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Turn a CumSum along another axis than the last."""
    if not is_op(node, "CumSum") or not is_float32(added.index, node.output[0]):
        return False
    result = node.output[0]
    given, rank = added.index.scalar(node.input[1]), len(added.shape(result))
    if given is None or int(given) % rank == rank - 1:
        return False
    axis = int(given) % rank
    order = [each for each in range(rank) if each != axis] + [axis]
    turned = added.op("Transpose", node.input[0], out=f"{result}_turned", perm=order)
    last = added.number(f"{result}_last", rank - 1, np.int64)
    how = settings(node)
    summed = added.op("CumSum", turned, last, out=f"{result}_summed", **how)
    added.replace("Transpose", summed, out=result, perm=[order.index(each) for each in range(rank)])
    return True
