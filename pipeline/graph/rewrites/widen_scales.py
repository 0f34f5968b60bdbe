"""Multiply sums with constants by a row of equal numbers in place of one number.

Before (`c` a constant of more than one element, `s` a constant of one)::

    Mul(Add(x, c), s)          Mul(Reshape(Add(x, c), dims), s)

After, with as many of it as the last axis has::

    Mul(Add(x, c), [s, s, ..., s])

In float16 HTP (2.51, emulated) makes ``x * s + c * s`` of the first, with the first element of `c` for all of them: a
query that is scaled behind its bias, as speech models have it, is off by a quarter of its size (0.213 of 0.853), and
right to 5e-4 by a row. In integers it is right either way.

Where the last axis has one element, the factors have the dims of the result. The result keeps its name. Left alone:
sums that others read, too; other types.
"""

from __future__ import annotations

import math

import numpy as np
from onnx import NodeProto

from pipeline.graph.ir.index import GraphIndex, is_float32, is_op
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.moves import VIEWS
from pipeline.graph.ir.node_builder import Additions, each_node


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Widen the factor of such a sum."""
    index = added.index
    place = _factor(index, node)
    if place is None or not _is_sum(index, node.input[1 - place]):
        return False
    result = node.output[0]
    dims = added.shape(result)
    factors = np.full(dims if dims[-1] == 1 else dims[-1:], index.scalar(node.input[place]), np.float32)
    node.input[place] = added.constant(f"{result}_factors", factors)
    return True


def _factor(index: GraphIndex, node: NodeProto) -> int | None:
    """The position of a constant of one element that a product of more has."""
    if not is_op(node, "Mul") or not is_float32(index, node.output[0]):
        return None
    if math.prod(shape_of(index.types[node.output[0]])) == 1:
        return None
    for place, name in enumerate(node.input):
        if name in index.initializers and all(dim == 1 for dim in index.initializers[name].dims):
            return place
    return None


def _is_sum(index: GraphIndex, name: str) -> bool:
    """Whether a value that nobody else reads is a sum with a constant of several elements."""
    node = index.makers.get(name)
    while node is not None and is_op(node, *VIEWS) and _is_read_once(index, name):
        name = node.input[0]
        node = index.makers.get(name)
    if node is None or not is_op(node, "Add") or not _is_read_once(index, name):
        return False
    return any(
        each in index.initializers and any(dim > 1 for dim in index.initializers[each].dims) for each in node.input
    )


def _is_read_once(index: GraphIndex, name: str) -> bool:
    return len(index.readers.get(name, [])) == 1 and name not in index.outputs


AFTER = {
    "merge_scales": "it looks for products with one number",
    "fuse_gelu": "it looks for products with one number",
}
