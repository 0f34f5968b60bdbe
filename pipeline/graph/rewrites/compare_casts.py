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

from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper

from pipeline.graph.ir.index import GraphIndex, element_type, is_op, substitute
from pipeline.graph.ir.node_builder import Additions

NAME = "compare_casts"

_SIGNED = (TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64)


def apply(model: ModelProto, folder: Path) -> int:
    """Replace every such Cast; returns their number."""
    index = GraphIndex(model, folder)
    added = Additions(index)
    found = [node for node in model.graph.node if _matches(index, node)]
    for node in found:
        value, result = node.input[0], node.output[0]
        kind = helper.tensor_dtype_to_np_dtype(element_type(index, value))
        zero = added.constant(f"{result}_zero", np.zeros((), kind))
        added.replace("Not", added.op("Equal", value, zero, out=f"{result}_is_zero"), out=result)
    if found:
        substitute(model, found, added.finish())
    return len(found)


def _matches(index: GraphIndex, node: NodeProto) -> bool:
    if not is_op(node, "Cast") or node.input[0] not in index.types or node.output[0] not in index.types:
        return False
    source, result = (element_type(index, name) for name in (node.input[0], node.output[0]))
    before = index.makers.get(node.input[0])
    if before is not None and is_op(before, "Cast") and element_type(index, before.input[0]) == TensorProto.BOOL:
        return False
    return source in _SIGNED and result == TensorProto.BOOL
