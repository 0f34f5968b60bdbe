"""Give the two sides of a power of 5 dims the shape of the result.

Before (neither is constant, float32)::

    Pow(x, y)

After::

    Pow(Expand(x, dims), Expand(y, dims))

where a side has other dims than the result. On such a Pow, QNN's compiler (2.51) ends its process in float16, and in
integers other numbers come out; of equal shapes it is right.

The result keeps its name. Left alone: results of fewer dims, constants, other types.
"""

from __future__ import annotations

from pathlib import Path

from onnx import ModelProto, NodeProto, TensorProto

from pipeline.graph.ir.index import GraphIndex, is_op, substitute
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
        sides = [
            name if added.shape(name) == dims else added.op("Expand", name, shape, out=f"{result}_of_{at}")
            for at, name in enumerate(node.input)
        ]
        added.replace("Pow", *sides, out=result)
    if found:
        substitute(model, found, added.finish())
    return len(found)


def _matches(index: GraphIndex, node: NodeProto) -> bool:
    if not is_op(node, "Pow") or any(name in index.initializers for name in node.input):
        return False
    types = [index.types[name] for name in (*node.input, *node.output)]
    if any(kind.tensor_type.elem_type != TensorProto.FLOAT for kind in types):
        return False
    *given, made = map(shape_of, types)
    return len(made) >= _DIMS and any(dims != made for dims in given)
