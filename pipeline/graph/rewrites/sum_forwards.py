"""Add up from the front, each place included: sums from the back, and of what is in front of a place.

Before (the axis a constant)::

    CumSum(x, axis, reverse=1)
    CumSum(x, axis, exclusive=1)

After::

    CumSum(x from behind, axis) from behind
    Concat(0, CumSum(Slice(x, all but the last), axis))

and both for both. QNN EP 2.7 leaves a CumSum that has either attribute to the CPU.

The result keeps its name. Left alone: computed axes, and sums of what is in front of a single place.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, helper

from pipeline.graph.ir.from_behind import from_behind
from pipeline.graph.ir.index import element_type, is_op
from pipeline.graph.ir.node_builder import Additions, each_node


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Turn a CumSum from the back, or of what is in front of a place."""
    if not is_op(node, "CumSum"):
        return False
    index = added.index
    how = {attribute.name for attribute in node.attribute if attribute.i}
    given, dims = index.scalar(node.input[1]), added.shape(node.output[0])
    if given is None or not how:
        return False
    result, axis = node.output[0], int(given) % len(dims)
    made, size = node.input[0], dims[axis]
    if "exclusive" in how and size == 1:
        return False
    if "reverse" in how:
        made = added.op("Slice", *from_behind(added, made, axis, f"{result}_turned"), out=f"{result}_turned")
    if "exclusive" in how:
        made = _all_but_last(added, made, axis, result)
    made = added.op("CumSum", made, node.input[1], out=f"{result}_summed")
    parts = [made]
    if "exclusive" in how:
        kind = helper.tensor_dtype_to_np_dtype(element_type(index, result))
        parts = [added.constant(f"{result}_first", np.zeros((*dims[:axis], 1, *dims[axis + 1 :]), kind)), made]
    if "reverse" not in how:
        added.replace("Concat", *parts, out=result, axis=axis)
        return True
    whole = added.op("Concat", *parts, out=f"{result}_whole", axis=axis) if "exclusive" in how else made
    added.replace("Slice", *from_behind(added, whole, axis, f"{result}_back"), out=result)
    return True


def _all_but_last(added: Additions, source: str, axis: int, result: str) -> str:
    bounds = (("start", 0), ("end", added.shape(source)[axis] - 1), ("axis", axis))
    given = [added.integers(f"{result}_before_{name}", value) for name, value in bounds]
    return added.op("Slice", source, *given, out=f"{result}_before")
