"""Select a triangle of a matrix by a constant mask.

Before, and after::

    Trilu(x, k, upper)        Where(mask, x, 0), of booleans And(mask, x)

The mask [rows, columns] is true in the triangle. QNN EP 2.7 leaves Trilu to the CPU. A product with zeros and ones
would make a NaN of an infinity that is left out.

The result keeps its name. Left alone: a computed k.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto, helper

from pipeline.graph.ir.attributes import integer
from pipeline.graph.ir.index import element_type, is_op
from pipeline.graph.ir.node_builder import Additions, each_node
from pipeline.graph.ir.traverse import input_at


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace a Trilu that keeps a known triangle."""
    if not is_op(node, "Trilu"):
        return False
    index = added.index
    result, kind = node.output[0], element_type(index, node.output[0])
    moved = index.scalar(node.input[1]) if input_at(node, 1) else 0.0
    if moved is None:
        return False
    ones = np.ones(added.shape(result)[-2:], np.bool_)
    kept = np.triu(ones, int(moved)) if integer(node, "upper", 1) else np.tril(ones, int(moved))
    mask = added.constant(f"{result}_mask", kept)
    if kind == TensorProto.BOOL:
        added.replace("And", mask, node.input[0], out=result)
        return True
    zero = added.number(f"{result}_zero", 0, helper.tensor_dtype_to_np_dtype(kind))
    added.replace("Where", mask, node.input[0], zero, out=result)
    return True
