"""Select a triangle of a matrix by a constant mask.

Before, and after::

    Trilu(x, k, upper)        Where(mask, x, 0), of booleans And(mask, x)

The mask [rows, columns] is true in the triangle. QNN EP 2.7 leaves Trilu to the CPU. A product with zeros and ones
would make a NaN of an infinity that is left out.

The result keeps its name. Left alone: a computed k.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper

from pipeline.graph.ir.index import GraphIndex, element_type, is_op, substitute
from pipeline.graph.ir.node_builder import Additions

NAME = "select_triangles"


def apply(model: ModelProto, folder: Path) -> int:
    """Replace every Trilu that keeps a known triangle; returns their number."""
    index = GraphIndex(model, folder)
    added = Additions(index)
    found = [node for node in model.graph.node if is_op(node, "Trilu") and _select(index, added, node)]
    if found:
        substitute(model, found, added.finish())
    return len(found)


def _select(index: GraphIndex, added: Additions, node: NodeProto) -> bool:
    result, kind = node.output[0], element_type(index, node.output[0])
    moved = index.scalar(node.input[1]) if len(node.input) > 1 and node.input[1] else 0.0
    if moved is None:
        return False
    upper = all(attribute.i for attribute in node.attribute if attribute.name == "upper")
    ones = np.ones(added.shape(result)[-2:], np.bool_)
    kept = np.triu(ones, int(moved)) if upper else np.tril(ones, int(moved))
    mask = added.constant(f"{result}_mask", kept)
    if kind == TensorProto.BOOL:
        added.replace("And", mask, node.input[0], out=result)
        return True
    zero = added.constant(f"{result}_zero", np.zeros((), helper.tensor_dtype_to_np_dtype(kind)))
    added.replace("Where", mask, node.input[0], zero, out=result)
    return True
