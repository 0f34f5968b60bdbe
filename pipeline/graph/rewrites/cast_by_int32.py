"""Cast bytes to floats by way of int32.

Before::

    Cast(x of uint8, to float)

After::

    Cast(Cast(x, to int32), to float)

In a float16 graph, HTP (2.51, emulated) takes the bytes for booleans: each that is not 0 becomes 1. A model that reads
an image as bytes computes with that, and nothing says so. By way of int32 all values are right, in 8 and 16 bits too.

The result keeps its name. Left alone: casts of and to other types.
"""

from __future__ import annotations

from onnx import NodeProto, TensorProto

from pipeline.graph.ir.index import element_type, is_float32, is_op
from pipeline.graph.ir.node_builder import Additions, each_node


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace a cast of bytes to floats."""
    if not is_op(node, "Cast") or not is_float32(added.index, node.output[0]):
        return False
    if node.input[0] not in added.index.types or element_type(added.index, node.input[0]) != TensorProto.UINT8:
        return False
    result = node.output[0]
    whole = added.op("Cast", node.input[0], out=f"{result}_int32", to=TensorProto.INT32)
    added.replace("Cast", whole, out=result, to=TensorProto.FLOAT)
    return True
