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
from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from pipeline.graph.ir.index import GraphIndex, element_type, is_op, substitute
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.node_builder import Additions

NAME = "expand_powers"

_DIMS = 5
"""The rank from which it goes wrong."""


def apply(model: ModelProto, folder: Path) -> int:
    """Expand the sides of every such power; returns the number of powers."""
    index = GraphIndex(model, folder)
    added = Additions(index)
    found = [node for node in model.graph.node if _matches(index, node)]
    for node in found:
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
    if found:
        substitute(model, found, added.finish())
    return len(found)


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
