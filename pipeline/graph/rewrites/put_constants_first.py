"""Add what a transposed convolution makes to a constant, not the constant to it.

Before, for a constant `c`, whether the convolution is clamped or not::

    Add(Relu(ConvTranspose(x)), c)

After::

    Add(c, Relu(ConvTranspose(x)))

With the constant as the second operand HTP (2.51, emulated) adds something else in integers, 0 to 14 dB; as the first
one it is right. (fold_biases puts it into the bias where it can.)

Elsewhere sums stay as they are. With the constant last the compiler writes it into the binary once, and not once for
every place that it is added to (MiniLM with 64 tokens, w8a16: 35.0 MB in place of 37.5), but equal compiles give other
bytes then: three digests in 20 of a small encoder, where the other order gave one.
"""

from __future__ import annotations

from onnx import NodeProto

from pipeline.graph.ir.index import GraphIndex, is_float32, is_op
from pipeline.graph.ir.node_builder import Additions, each_node

_CLAMPS = ("Clip", "Relu")


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Turn such a sum around."""
    if not is_op(node, "Add") or not is_float32(added.index, node.output[0]):
        return False
    first, second = node.input
    constants = added.index.initializers
    if first in constants or second not in constants or not _is_transposed(added.index, first):
        return False
    node.input[:] = [second, first]
    return True


def _is_transposed(index: GraphIndex, value: str) -> bool:
    """Whether a value is what a ConvTranspose makes, clamped or not."""
    maker = index.maker(value, "ConvTranspose", *_CLAMPS)
    while maker is not None and is_op(maker, *_CLAMPS):
        maker = index.maker(maker.input[0], "ConvTranspose", *_CLAMPS)
    return maker is not None
