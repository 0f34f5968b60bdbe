"""Write the negative and the sign of integers with operators that QNN takes.

Before, of int32 or int64::

    Neg(x)
    Sign(x)

After::

    Sub(0, x)
    Sub(Cast(Greater(x, 0)), Cast(Less(x, 0)))

QNN (EP 2.7) leaves both to the CPU; of floats it takes them. The result keeps its name.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper

from pipeline.graph.ir.index import GraphIndex, element_type, is_op, substitute
from pipeline.graph.ir.node_builder import Additions

NAME = "compare_signs"

_KINDS = (TensorProto.INT32, TensorProto.INT64)


def apply(model: ModelProto, folder: Path) -> int:
    """Replace every such node; returns their number."""
    index = GraphIndex(model, folder)
    added = Additions(index)
    found = [
        node
        for node in model.graph.node
        if is_op(node, "Neg", "Sign") and element_type(index, node.output[0]) in _KINDS
    ]
    for node in found:
        _replace(index, added, node)
    if found:
        substitute(model, found, added.finish())
    return len(found)


def _replace(index: GraphIndex, added: Additions, node: NodeProto) -> None:
    given, result = node.input[0], node.output[0]
    kind = element_type(index, result)
    zero = added.constant(f"{result}_zero", np.zeros((), helper.tensor_dtype_to_np_dtype(kind)))
    if is_op(node, "Neg"):
        added.replace("Sub", zero, given, out=result)
        return
    above, below = (
        added.op("Cast", added.op(op, given, zero, out=f"{result}_is_{name}"), out=f"{result}_{name}", to=kind)
        for op, name in (("Greater", "above"), ("Less", "below"))
    )
    added.replace("Sub", above, below, out=result)
