"""Cast bytes to floats, and booleans to an output of int64, by way of int32.

Before::

    Cast(x of uint8, to float)
    Cast(x of bool, to int64)                   an output of the model

After::

    Cast(Cast(x, to int32), to float)
    Cast(Cast(x, to int32), to int64)

In a float16 graph, HTP (2.51, emulated) takes the bytes for booleans: each that is not 0 becomes 1. A model that reads
an image as bytes computes with that, and nothing says so. By way of int32 all values are right, in 8 and 16 bits too.
A boolean it does not cast to an output of int64 ("Failed to create Cast node").

The result keeps its name. Left alone: casts of and to other types.
"""

from __future__ import annotations

from onnx import NodeProto, TensorProto

from pipeline.graph.ir.index import element_type, is_op
from pipeline.graph.ir.node_builder import Additions, each_node


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace a cast of bytes to floats, or of booleans to an output."""
    index = added.index
    if not is_op(node, "Cast") or node.input[0] not in index.types:
        return False
    given, result = element_type(index, node.input[0]), node.output[0]
    made = element_type(index, result)
    flag = (given, made) == (TensorProto.BOOL, TensorProto.INT64) and result in index.outputs
    if not flag and (given, made) != (TensorProto.UINT8, TensorProto.FLOAT):
        return False
    whole = added.op("Cast", node.input[0], out=f"{result}_int32", to=TensorProto.INT32)
    added.replace("Cast", whole, out=result, to=made)
    return True
