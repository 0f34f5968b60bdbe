"""Write a factor out in full, where both factors were reshaped to be multiplied each by each.

Before, where a and b have the same dims, but for those of 1, and what they become has not::

    Mul(Reshape(a), Reshape(b))                                   Unsqueeze, Squeeze, Flatten for Reshape

After::

    Mul(Expand(Reshape(a), dims of the product), Reshape(b))

In integers HTP (2.51, emulated) multiplies in front of such Reshapes, where each element meets one: of a and b of
[4, 16] that become [4, 16, 1] and [4, 1, 16] the product is at -17 dB in 16 bits, -14 in 8 bits, and 81 with this. It
is right in float16, and with sums, quotients and the larger of two. Outer products are written so, and linear
attention (keys by values).

Nothing is rounded, and the result keeps its name. Left alone: types other than float32.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto

from pipeline.graph.ir.index import is_float32, is_op
from pipeline.graph.ir.node_builder import Additions, each_node


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Expand the first factor of a product of two reshaped values."""
    if not is_op(node, "Mul") or not is_float32(added.index, node.output[0]):
        return False
    first, second = (_without_ones(_source_dims(added, name)) for name in node.input)
    if not first or first != second:
        return False
    dims = [added.shape(name) for name in node.input]
    full = np.broadcast_shapes(*dims)
    if full in dims:
        return False
    result = node.output[0]
    node.input[0] = added.op(
        "Expand",
        node.input[0],
        added.integers(f"{result}_dims", *full),
        out=f"{result}_first",
        name=f"{result}_in_full",
    )
    return True


def _source_dims(added: Additions, name: str) -> tuple[int, ...]:
    """The dims that a value had before it was reshaped; none if it was not."""
    reshape = added.index.maker(name, "Reshape", "Unsqueeze", "Squeeze", "Flatten")
    return added.shape(reshape.input[0]) if reshape is not None else ()


def _without_ones(dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in dims if size != 1)
