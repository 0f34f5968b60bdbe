"""Compute Tanh with a Sigmoid, in the shapes where HTP gets it wrong.

Before::

    Tanh(x)

After::

    Sub(Mul(Sigmoid(Mul(x, 2)), 2), 1)

which is the same. In 16 bits HTP (2.51, all architectures, emulated) computes only the first 64 elements of a Tanh over
16 places, [1, 16, channels] or [1, channels, 1, 16] of a convolution (15, 17 and 32 are right), and nothing of Tanh and
Mul or Add where Tanh has one channel and the result many. A bucket of 16, with a tanh Gelu, a gate as WaveNet or an
activation as Mish has it, meets that. With Tanh(x + 2) times something, [1, 16, 24], SQNR of the context against the
QDQ model: -5 dB; with Max(Tanh, -1) between, which helps where x is no sum, -5 dB; after, 70 dB. Where Tanh is right,
the two are equal within 2 dB of 80.

The result keeps its name. Left alone: all other shapes.
"""

from __future__ import annotations

import math

from onnx import NodeProto

from pipeline.graph.ir.index import GraphIndex, is_float32, is_op
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.node_builder import Additions, each_node

_PLACES = 16


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace a Tanh of such a shape."""
    if not _matches(added.index, node):
        return False
    result = node.output[0]
    two, one = added.number(f"{result}_two", 2), added.number(f"{result}_one", 1)
    doubled = added.op("Mul", node.input[0], two, out=f"{result}_doubled")
    sigmoid = added.op("Sigmoid", doubled, out=f"{result}_sigmoid")
    stretched = added.op("Mul", sigmoid, two, out=f"{result}_stretched")
    added.replace("Sub", stretched, one, out=result)
    return True


def _matches(index: GraphIndex, node: NodeProto) -> bool:
    if not is_op(node, "Tanh") or not is_float32(index, node.output[0]):
        return False
    dims = shape_of(index.types[node.output[0]])
    return _one_channel(dims) or _sixteen_places(dims)


def _one_channel(dims: tuple[int, ...]) -> bool:
    return len(dims) > 1 and dims[-1] == 1 and math.prod(dims) > 1


def _sixteen_places(dims: tuple[int, ...]) -> bool:
    """Whether HTP, which has channels last, sees one row of 16 places."""
    one_row = len(dims) > 1 and math.prod(dims[:-2]) == 1 and _PLACES in dims[-2:]  # [1, 16, channels] or turned
    image = len(dims) == 4 and dims[0] == dims[2] == 1 and dims[3] == _PLACES  # [1, channels, 1, 16]
    return one_row or image
