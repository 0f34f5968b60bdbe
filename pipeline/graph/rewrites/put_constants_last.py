"""Add a constant to a value, not the value to the constant.

Before, for a constant `c` that is added in several places::

    Add(c, x)

After::

    Add(x, c)

QNN's compiler (2.51) writes the first operand of an Add into the binary once for every place that it is added to, and
the second one once. What is computed is the same, bit for bit: in 16 and 8 bits and in float16, behind products,
convolutions, activations and norms, but for LayerNormalization in float16, which gains 2 dB (69.8 to 72.3). torch's
exporter puts the biases of linear layers first.
MiniLM with 64 tokens, in MB: 37.5 without this and 35.0 with it at w8a16, 24.3 and 23.1 at w8a8, 45.7 and 45.2 in
float16; with more tokens it is more.

Behind a transposed convolution, clamped or not, the constant comes first: as the second one HTP (2.51, emulated) adds
something else in integers, 0 to 14 dB. (fold_biases puts it into the bias where it can.)

Left alone: constants of one number, or of as many as the result has, but behind a transposed convolution, where they
come first, too; types other than float32; Sub, whose order matters.
"""

from __future__ import annotations

from math import prod

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
    if (first in constants) == (second in constants):
        return False
    constant, value = (first, second) if first in constants else (second, first)
    if _is_transposed(added.index, value):
        turn = bool(constant == second)
    else:
        turn = constant == first and 1 < prod(constants[constant].dims) < prod(added.shape(node.output[0]))
    if turn:
        node.input[:] = [second, first]
    return turn


def _is_transposed(index: GraphIndex, value: str) -> bool:
    """Whether a value is what a ConvTranspose makes, clamped or not."""
    maker = index.maker(value, "ConvTranspose", *_CLAMPS)
    while maker is not None and is_op(maker, *_CLAMPS):
        maker = index.maker(maker.input[0], "ConvTranspose", *_CLAMPS)
    return maker is not None
