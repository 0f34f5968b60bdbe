"""Find the last of the largest or smallest as the first from behind.

Before, and after for an axis of n elements::

    ArgMax(x, axis, select_last_index=1)        Sub(n - 1, ArgMax(x from behind, axis))

and so for ArgMin. QNN EP 2.7 leaves a node with that attribute to the CPU.

The result keeps its name.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, helper

from pipeline.graph.ir.from_behind import from_behind
from pipeline.graph.ir.index import GraphIndex, is_op, substitute
from pipeline.graph.ir.node_builder import Additions

NAME = "find_last_extremes"


def apply(model: ModelProto, folder: Path) -> int:
    """Replace every such node; returns their number."""
    index = GraphIndex(model, folder)
    added = Additions(index)
    found = [node for node in model.graph.node if _from_behind(node)]
    for node in found:
        _turn(added, node)
    if found:
        substitute(model, found, added.finish())
    return len(found)


def _from_behind(node: NodeProto) -> bool:
    last = any(attribute.name == "select_last_index" and attribute.i for attribute in node.attribute)
    return last and is_op(node, "ArgMax", "ArgMin")


def _turn(added: Additions, node: NodeProto) -> None:
    given, result = node.input[0], node.output[0]
    how = {each.name: helper.get_attribute_value(each) for each in node.attribute if each.name != "select_last_index"}
    dims = added.shape(given)
    axis = how.get("axis", 0) % len(dims)
    last = dims[axis] - 1
    turned = added.op("Slice", *from_behind(added, given, axis, result), out=f"{result}_turned")
    place = added.op(node.op_type, turned, out=f"{result}_from_behind", **how)
    added.replace("Sub", added.constant(f"{result}_last", np.array(last)), place, out=result)
