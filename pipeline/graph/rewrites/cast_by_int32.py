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

from pathlib import Path

from onnx import ModelProto, NodeProto, TensorProto

from pipeline.graph.ir.index import GraphIndex, is_op, substitute
from pipeline.graph.ir.node_builder import Additions

NAME = "cast_by_int32"


def apply(model: ModelProto, folder: Path) -> int:
    """Replace every cast of bytes to floats; returns their number."""
    index = GraphIndex(model, folder)
    added = Additions(index)
    found = [node for node in model.graph.node if _matches(index, node)]
    for node in found:
        result = node.output[0]
        whole = added.op("Cast", node.input[0], out=f"{result}_int32", to=TensorProto.INT32)
        added.replace("Cast", whole, out=result, to=TensorProto.FLOAT)
    if found:
        substitute(model, found, added.finish())
    return len(found)


def _matches(index: GraphIndex, node: NodeProto) -> bool:
    if not is_op(node, "Cast") or node.input[0] not in index.types:
        return False
    source, result = (index.types[name].tensor_type.elem_type for name in (node.input[0], node.output[0]))
    return source == TensorProto.UINT8 and result == TensorProto.FLOAT
