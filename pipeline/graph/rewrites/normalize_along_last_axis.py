"""Normalize over one axis: a LayerNormalization over several has its axes put together.

Before, with x of [2, 4, 6] and a constant scale and bias::

    LayerNormalization(x, scale, bias, axis=1)

After, with scale and bias as 24 numbers, spread over the axes if they were fewer::

    Reshape(LayerNormalization(Reshape(x, [2, 24]), scale, bias, axis=-1), [2, 4, 6])

QNN EP 2.7 leaves a norm over several axes to the CPU.

The result keeps its name. Left alone: a scale or bias that is computed, or that differs along an axis in front
of the normalized ones; mean and deviation that are read.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from pipeline.graph.ir.attributes import settings
from pipeline.graph.ir.index import is_op
from pipeline.graph.ir.node_builder import Additions, each_node


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Flatten what a LayerNormalization over several axes is of."""
    if not is_op(node, "LayerNormalization"):
        return False
    index = added.index
    given = settings(node)
    result, dims = node.output[0], added.shape(node.input[0])
    axis = given.get("axis", -1) % len(dims)
    if axis == len(dims) - 1:
        return False
    over = dims[axis:]
    factors = [_spread(index.constant(name), over) for name in node.input[1:] if name]
    read = [name for name in node.output[1:] if name in index.readers or name in index.outputs]
    if read or any(values is None for values in factors):
        return False
    flat = added.integers(f"{result}_flat_dims", *dims[:axis], prod(over))
    rows = added.op("Reshape", node.input[0], flat, out=f"{result}_flat")
    named = [
        added.constant(f"{result}_{name}", values)
        for name, values in zip(("gamma", "beta"), factors, strict=False)
        if values is not None
    ]
    normed = added.op("LayerNormalization", rows, *named, out=f"{result}_normed", **{**given, "axis": -1})
    added.replace("Reshape", normed, added.integers(f"{result}_dims", *dims), out=result)
    return True


def _spread(values: NDArray[Any] | None, over: tuple[int, ...]) -> NDArray[Any] | None:
    """A scale or bias as one number for each place of the normalized axes `over`, flat; None if it has others."""
    if values is None:
        return None
    in_front = max(values.ndim - len(over), 0)
    if any(size != 1 for size in values.shape[:in_front]):
        return None
    return np.ascontiguousarray(np.broadcast_to(values.reshape(values.shape[in_front:]), over)).reshape(-1)
