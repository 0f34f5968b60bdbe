"""Keep Sigmoid and Tanh apart from the sum or product that they are taken of.

Before, where a Conv, ConvTranspose, Gemm, MatMul, BatchNormalization or Add makes x::

    Sigmoid(x)          Tanh(x)          Mul(x, Sigmoid(x))

After::

    b = Clip(x, -128)
    Sigmoid(b)          Tanh(b)          Mul(b, Sigmoid(b))

which is the same: in float32 the first is 0 and the second -1 from there on.

In float16 HTP (2.51, emulated) makes one operator of the two nodes, whose activation is a coarse table, as it is inside
LSTM. Largest errors, and SQNR, for x within 8::

                       as one              apart
    Sigmoid(Conv)      3.7e-3  49 dB       7.5e-4  67 dB         the same for Gemm, MatMul and Add
    Tanh(Conv)         7.3e-3  49 dB       2.7e-4  77 dB
    Swish(Conv)        1.9e-2  49 dB       3.7e-3  68 dB

A detector's probabilities and a recurrent net's gates go wrong by that. In integers the bound costs nothing: the
quantizer drops it, as x has the same encoding, unless something else reads x, too.

Results keep their names, and other readers of x keep x. Left alone: types other than float32; what other
operators make, which HTP doesn't join with the activation.
"""

from __future__ import annotations

from onnx import NodeProto

from pipeline.graph.ir.index import is_float32, is_op
from pipeline.graph.ir.node_builder import Additions, each_node

_MAKERS = ("Add", "BatchNormalization", "Conv", "ConvTranspose", "Gemm", "MatMul")

_LEAST = -128.0
"""Sigmoid of less than -104 is 0 in float32, and Tanh of less than -10 is -1."""


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Bound what a node makes if such an activation reads it."""
    if not is_op(node, *_MAKERS) or not is_float32(added.index, node.output[0]):
        return False
    index, name = added.index, str(node.output[0])
    activations = [reader for reader in index.readers.get(name, []) if is_op(reader, "Sigmoid", "Tanh")]
    if not activations:
        return False
    bound = added.op("Clip", name, added.number(f"{name}_least", _LEAST), out=f"{name}_bounded")
    for reader in activations:
        _read(reader, name, bound)
        for product in index.readers.get(reader.output[0], []):
            if is_op(reader, "Sigmoid") and is_op(product, "Mul") and name in product.input:
                _read(product, name, bound)
    return True


def _read(reader: NodeProto, name: str, bound: str) -> None:
    reader.input[list(reader.input).index(name)] = bound


AFTER = {
    "decompose_lstm_step": "it writes a Tanh of a sum",
    "decompose_softplus": "it writes a Sigmoid, and looks for a Tanh",
    "decompose_swish": "it writes a Sigmoid",
    "replace_tanh": "the Sigmoid in place of a Tanh is not of a sum",
}
