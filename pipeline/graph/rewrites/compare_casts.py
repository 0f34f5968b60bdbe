"""Compare integers with zero rather than cast them to booleans.

Before::

    Cast(x of int32, to bool)

After::

    Not(Equal(x, 0))

HTP (2.51, emulated) takes negative integers for false; a build whose samples have none passes, and a mask of -1 masks
nothing. Floats of either sign are right. The result keeps its name. Left alone: unsigned integers, and what was a
boolean before it was an integer.
"""

from __future__ import annotations

from onnx import NodeProto, TensorProto, helper

from pipeline.graph.ir.index import GraphIndex, element_type, is_op
from pipeline.graph.ir.node_builder import Additions, each_node

_SIGNED = (TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64)


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace a Cast of signed integers to booleans."""
    if not _matches(added.index, node):
        return False
    value, result = node.input[0], node.output[0]
    zero = added.number(f"{result}_zero", 0, helper.tensor_dtype_to_np_dtype(element_type(added.index, value)))
    added.replace("Not", added.op("Equal", value, zero, out=f"{result}_is_zero"), out=result)
    return True


def _matches(index: GraphIndex, node: NodeProto) -> bool:
    if not is_op(node, "Cast") or node.input[0] not in index.types or node.output[0] not in index.types:
        return False
    source, result = (element_type(index, name) for name in (node.input[0], node.output[0]))
    before = index.makers.get(node.input[0])
    if before is not None and is_op(before, "Cast") and element_type(index, before.input[0]) == TensorProto.BOOL:
        return False
    return source in _SIGNED and result == TensorProto.BOOL
