"""Find the last of the largest or smallest as the first from behind.

Before, and after for an axis of n elements::

    ArgMax(x, axis, select_last_index=1)        Sub(n - 1, ArgMax(x from behind, axis))

and so for ArgMin. QNN EP 2.7 leaves a node with that attribute to the CPU.

The result keeps its name.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto

from pipeline.graph.ir.attributes import integer, settings
from pipeline.graph.ir.from_behind import from_behind
from pipeline.graph.ir.index import is_op
from pipeline.graph.ir.node_builder import Additions, each_node


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace an ArgMax or ArgMin that finds the last."""
    if not is_op(node, "ArgMax", "ArgMin") or not integer(node, "select_last_index"):
        return False
    given, result = node.input[0], node.output[0]
    how = {name: value for name, value in settings(node).items() if name != "select_last_index"}
    dims = added.shape(given)
    axis = how.get("axis", 0) % len(dims)
    last = dims[axis] - 1
    turned = added.op("Slice", *from_behind(added, given, axis, result), out=f"{result}_turned")
    place = added.op(node.op_type, turned, out=f"{result}_from_behind", **how)
    added.replace("Sub", added.number(f"{result}_last", last, np.int64), place, out=result)
    return True
