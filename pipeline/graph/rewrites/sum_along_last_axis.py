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

from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper

from pipeline.graph.ir.index import GraphIndex, is_op, substitute
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.node_builder import Additions

NAME = "sum_along_last_axis"


def apply(model: ModelProto, folder: Path) -> int:
    """Turn every such sum; returns their number."""
    index = GraphIndex(model, folder)
    added = Additions(index)
    found = []
    for node in model.graph.node:
        axis = _axis(index, node)
        if axis is not None:
            _turn(added, node, axis, len(shape_of(index.types[node.output[0]])))
            found.append(node)
    if found:
        substitute(model, found, added.finish())
    return len(found)


def _axis(index: GraphIndex, node: NodeProto) -> int | None:
    """The axis of a sum that is to be turned."""
    if not is_op(node, "CumSum") or index.types[node.output[0]].tensor_type.elem_type != TensorProto.FLOAT:
        return None
    given, rank = index.scalar(node.input[1]), len(shape_of(index.types[node.output[0]]))
    if given is None or int(given) % rank == rank - 1:
        return None
    return int(given) % rank


def _turn(added: Additions, node: NodeProto, axis: int, rank: int) -> None:
    result = node.output[0]
    order = [each for each in range(rank) if each != axis] + [axis]
    turned = added.op("Transpose", node.input[0], out=f"{result}_turned", perm=order)
    last = added.constant(f"{result}_last", np.array(rank - 1, np.int64))
    how = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    summed = added.op("CumSum", turned, last, out=f"{result}_summed", **how)
    added.replace("Transpose", summed, out=result, perm=[order.index(each) for each in range(rank)])
