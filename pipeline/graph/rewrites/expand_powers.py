"""Give the two sides of a power of 5 dims the shape of the result.

Before (float32)::

    Pow(x, y)

After::

    Pow(Expand(x, dims), Expand(y, dims))

where a side has other dims than the result; a constant is stored so. On such a Pow, QNN's compiler (2.51) ends its
process in float16, and in integers other numbers come out; of equal shapes it is right.

The result keeps its name. Left alone: results of fewer dims, constants of one element, other types.
"""

from __future__ import annotations

import math

import numpy as np
from onnx import NodeProto, TensorProto

from pipeline.graph.ir.index import GraphIndex, element_type, is_op
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.node_builder import Additions, each_node

_DIMS = 5
"""The rank from which it goes wrong."""


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Expand the sides of a Pow over many dims."""
    index = added.index
    if not _matches(index, node):
        return False
    result = node.output[0]
    dims = added.shape(result)
    shape = added.integers(f"{result}_shape", *dims)
    sides = []
    for at, name in enumerate(node.input):
        constant, to = index.constant(name), f"{result}_of_{at}"
        if not _differs(index, name, dims):
            sides.append(name)
        elif constant is not None:
            sides.append(added.constant(to, np.broadcast_to(constant, dims).copy()))
        else:
            sides.append(added.op("Expand", name, shape, out=to))
    added.replace("Pow", *sides, out=result)
    return True


def _matches(index: GraphIndex, node: NodeProto) -> bool:
    if not is_op(node, "Pow"):
        return False
    if any(element_type(index, name) != TensorProto.FLOAT for name in (*node.input, *node.output)):
        return False
    made = shape_of(index.types[node.output[0]])
    return len(made) >= _DIMS and any(_differs(index, name, made) for name in node.input)


def _differs(index: GraphIndex, name: str, made: tuple[int, ...]) -> bool:
    """Whether one side of a power has other dims than the result, and more than one element if it is constant."""
    if name not in index.initializers:
        return shape_of(index.types[name]) != made
    dims = tuple(index.initializers[name].dims)
    return math.prod(dims) > 1 and dims != made
