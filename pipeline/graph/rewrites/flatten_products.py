"""Multiply matrices in batches of 5 dims and more as batches of 3.

Before, of matrices [a, b, c, m, k] and [a, b, c, k, n]::

    MatMul(x, y)

After::

    Reshape(MatMul(Reshape(x, [a b c, m, k]), Reshape(y, [a b c, k, n])), [a, b, c, m, n])

Where y is one matrix for all batches, x becomes [a b c m, k]. A constant x that is one matrix stays one. Where one side
has fewer batches than the result otherwise, an Expand makes as many.

HTP (2.51, emulated) computes other numbers of two values of 5 dims in 8 bits (-7 and -12 dB where two of the batch dims
are more than 1; 45 otherwise), and does not compile the product of 5 dims by a constant. Of one constant matrix of 5
dims from the left it computes 0 dB in 8 bits, and does not compile it in 16; 40 and 51 with this.

The result keeps its name. Left alone: products of fewer dims, vectors, integers, and a constant of some batches
that would be expanded: computed, it would have no encoding of weights.
"""

from __future__ import annotations

from math import prod

import numpy as np
from onnx import NodeProto

from pipeline.graph.ir.index import GraphIndex, is_float, is_op
from pipeline.graph.ir.node_builder import Additions, each_node

_DIMS = 5


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Flatten a MatMul over many dims."""
    if not _is_deep(added.index, added, node):
        return False
    _flatten(added.index, added, node)
    return True


def _is_deep(index: GraphIndex, added: Additions, node: NodeProto) -> bool:
    if not is_op(node, "MatMul") or not is_float(index, node.output[0]):
        return False
    batches = added.shape(node.output[0])[:-2]
    shapes = [added.shape(name) for name in node.input]
    if len(batches) + 2 < _DIMS or min(map(len, shapes)) < 2:
        return False
    return all(
        shape[:-2] == batches or prod(shape[:-2]) == 1 or name not in index.initializers
        for name, shape in zip(node.input, shapes, strict=True)
    )


def _flatten(index: GraphIndex, added: Additions, node: NodeProto) -> None:
    left, right = node.input
    result = node.output[0]
    dims = added.shape(result)
    if prod(added.shape(right)[:-2]) == 1:
        rows = _shaped(index, added, left, (prod(added.shape(left)[:-1]), added.shape(left)[-1]), result)
        made = added.op("MatMul", rows, _shaped(index, added, right, added.shape(right)[-2:], result),
                        out=f"{result}_flat")  # fmt: skip
    else:
        flat = [_batches(index, added, name, dims[:-2], result) for name in (left, right)]
        made = added.op("MatMul", *flat, out=f"{result}_flat")
    added.replace("Reshape", made, added.integers(f"{result}_dims", *dims), out=result)


def _batches(index: GraphIndex, added: Additions, name: str, batches: tuple[int, ...], result: str) -> str:
    """The value in 3 dims, with all the batches of the result; a constant may have one for all of them."""
    shape = added.shape(name)
    count = prod(shape[:-2])
    if count != prod(batches) and name not in index.initializers:
        whole = added.integers(f"{result}_batches", *batches, *shape[-2:])
        name, count = added.op("Expand", name, whole, out=f"{name}_expanded"), prod(batches)
    return _shaped(index, added, name, (count, *shape[-2:]), result)


def _shaped(index: GraphIndex, added: Additions, name: str, dims: tuple[int, ...], result: str) -> str:
    """The value, or the constant, in other dims."""
    if added.shape(name) == dims:
        return name
    constant = index.constant(name) if name in index.initializers else None
    if constant is not None:
        return added.constant(f"{result}_matrices", np.ascontiguousarray(constant.reshape(dims)))
    return added.op("Reshape", name, added.integers(f"{result}_rows", *dims), out=f"{name}_flat")
