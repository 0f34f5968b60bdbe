"""Multiply the rows of several batches by a constant matrix as the rows of one.

Before, of a value [a, b, m, k] of which a or b is more than 1, and a constant matrix [k, n]::

    MatMul(x, w)

After::

    Reshape(MatMul(Reshape(x, [a b m, k]), w), [a, b, m, n])

QNN EP 2.7 compiles nothing of a model with such a product where its weight is in blocks ("Memory allocation related
error", whatever the sizes): any linear layer over windows, as in Swin, over planes with the channels last, as in
ConvNeXt, or with a batch of more than one. Flat it compiles, 46 dB from the original as any product in blocks.

The result and the node keep their names. Left alone: vectors, integers, products of two computed values, matrices
in batches.
"""

from __future__ import annotations

from math import prod

from onnx import NodeProto

from pipeline.graph.ir.index import GraphIndex, is_float, is_op
from pipeline.graph.ir.node_builder import Additions, each_node

_MATRIX = 2
"""The dims of one."""


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Flatten a MatMul of several batches by one constant matrix."""
    if not _matches(added.index, added, node):
        return False
    source, weight = node.input
    result = node.output[0]
    *batches, inner = added.shape(source)
    to = added.integers(f"{result}_rows", prod(batches), inner)
    rows = added.op("Reshape", source, to, out=f"{result}_given")
    made = added.op("MatMul", rows, weight, out=f"{result}_flat", name=node.name)
    added.replace("Reshape", made, added.integers(f"{result}_dims", *added.shape(result)), out=result)
    return True


def _matches(index: GraphIndex, added: Additions, node: NodeProto) -> bool:
    if not is_op(node, "MatMul") or not is_float(index, node.output[0]):
        return False
    source, weight = node.input
    constant = weight in index.initializers and source not in index.initializers
    return constant and len(added.shape(weight)) == _MATRIX and prod(added.shape(source)[:-_MATRIX]) > 1


AFTER = {
    "bound_activations": "it looks for activations right behind a product",
    "scale_weights": "it looks for factors right behind a product",
}
