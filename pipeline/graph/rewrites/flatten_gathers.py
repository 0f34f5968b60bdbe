"""Look elements up along the middle one of three dims where the result has 5, or the data one.

Before (x of any type [a, b, c, d], indices of two dims or more)::

    Gather(x, indices [i, j], axis=2)                                            [a, b, i, j, d]

After::

    Reshape(Gather(Reshape(x, [a b, c, d]), Reshape(indices, [i j]), axis=1), [a, b, i, j, d])

A constant x or constant indices are shaped here. HTP (2.51, emulated) takes other elements in 8 and 16 bits (2.61 for
-2.85), along the first axis compiles nothing, and in float16 makes a context that its own emulator can't run. A lookup
along the first of 5 dims it does not compile either. A lookup of several dims of places in a row, as torch writes
`as_strided`, ends the compiler's process where a Transpose reads it and another one stands before it: onnxruntime
(1.31.1) moves the second through the lookup by a permutation of one dim.

The result keeps its name. Left alone: results of more than 5 dims, those of less out of more than a row, and one index
or a row of them for another axis than the first of 5, which are right.
"""

from __future__ import annotations

from math import prod

from onnx import NodeProto

from pipeline.graph.ir.attributes import integer
from pipeline.graph.ir.axis_groups import MOST_DIMS
from pipeline.graph.ir.index import GraphIndex, is_op
from pipeline.graph.ir.node_builder import Additions, each_node


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Flatten a lookup over many dims."""
    if not is_op(node, "Gather") or not _is_deep(added, node):
        return False
    _flatten(added.index, added, node)
    return True


def _axis(added: Additions, node: NodeProto) -> int:
    return integer(node, "axis") % len(added.shape(node.input[0]))


def _is_deep(added: Additions, node: NodeProto) -> bool:
    data, indices = (len(added.shape(name)) for name in node.input)
    result = data + indices - 1
    if result > MOST_DIMS or data > MOST_DIMS:
        return False
    if indices > 1:
        return result == MOST_DIMS or data == 1
    return data == MOST_DIMS and _axis(added, node) == 0


def _flatten(index: GraphIndex, added: Additions, node: NodeProto) -> None:
    (data, indices), result = node.input, node.output[0]
    axis, dims, places = _axis(added, node), added.shape(data), added.shape(indices)
    rows = _shaped(index, added, data, f"{result}_rows", prod(dims[:axis]), dims[axis], prod(dims[axis + 1 :]))
    row = _shaped(index, added, indices, f"{result}_row", prod(places))
    taken = added.op("Gather", rows, row, out=f"{result}_taken", axis=1)
    whole = added.integers(f"{result}_dims", *dims[:axis], *places, *dims[axis + 1 :])
    added.replace("Reshape", taken, whole, out=result)


def _shaped(index: GraphIndex, added: Additions, name: str, stem: str, *dims: int) -> str:
    """A value in other dims; a constant is one of these dims."""
    values = index.constant(name)
    if values is not None:
        return added.constant(stem, values.reshape(dims))
    return added.op("Reshape", name, added.integers(f"{stem}_dims", *dims), out=stem)


AFTER = {
    "gather_at_once": "it looks for chains of lookups over more dims",
    "gather_edges": "pads of 5 dims become lookups along the first",
    "gather_neighbours": "nearest neighbours of 5 dims become lookups along the first",
}
