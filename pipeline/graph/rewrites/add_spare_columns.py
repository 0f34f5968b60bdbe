"""Give a linear layer between two Reshapes a column to spare, which a Slice leaves out.

Before, where x and y have the same dims but for the last, and the layer reads more of x than its last dim (w float32,
constant; no bias, or one of zeros)::

    y = Reshape(MatMul(Reshape(x), w))                      Gemm for MatMul; Flatten, Unsqueeze, Squeeze for Reshape

After, where w' is w with a column of zeros::

    y = Reshape(Slice(MatMul(Reshape(x), w'), all but the last))

In float16 HTP (2.51, emulated) takes such a layer for one over the last dim of x, as the dims around it look, and no
tool says so: x of [1, 8, 16], flattened, through a layer of 128 by 256, to [1, 8, 32] is at 0 dB, 68 with this; or
nothing is compiled ("Memory allocation related error"). It is right in integers, behind a bias that is not zero, and
where the dims differ. Decoders that make a picture of a vector are such, and Fourier transforms by products.

Nothing is rounded otherwise, and the result keeps its name. Left alone: weights that are computed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import NodeProto

from pipeline.graph.ir.attributes import integer, settings
from pipeline.graph.ir.index import GraphIndex, is_float32, is_op
from pipeline.graph.ir.node_builder import Additions, each_node
from pipeline.graph.ir.traverse import input_at, other_input

_RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")

Dims = tuple[int, ...]


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Add a column to the weights of a MatMul or Gemm between Reshapes."""
    index = added.index
    if not is_op(node, "MatMul", "Gemm") or not is_float32(index, node.output[0]) or not _is_layer(index, node):
        return False
    rows = integer(node, "transB") if is_op(node, "Gemm") else 0
    inner = added.shape(node.input[1])[1 if rows else 0]
    before = {dims[:-1] for dims in _in_front(added, node.input[0]) if dims and dims[-1] != inner}
    if not any(dims[:-1] in before for dims in _behind(added, node.output[0]) if dims):
        return False
    weights = index.constant(node.input[1])
    assert weights is not None
    result, made = node.output[0], added.shape(node.output[0])
    more = np.pad(weights, ((0, rows), (0, 1 - rows)))
    product = added.op(
        node.op_type, node.input[0], added.constant(f"{node.input[1]}_more", more), out=f"{result}_more",
        name=node.name, **settings(node),
    )  # fmt: skip
    bounds = added.integers(f"{result}_first", 0), added.integers(f"{result}_last", made[-1])
    added.replace("Slice", product, *bounds, added.integers(f"{result}_axis", len(made) - 1), out=result)
    return True


def _is_layer(index: GraphIndex, node: NodeProto) -> bool:
    """Whether this multiplies by a constant matrix from the right, and adds nothing."""
    weights = index.initializers.get(node.input[1])
    if weights is None or len(weights.dims) != 2 or integer(node, "transA"):
        return False
    return not input_at(node, 2) or index.scalar(node.input[2]) == 0


def _in_front(added: Additions, name: str) -> Iterator[Dims]:
    """The dims that a value had before each of the Reshapes that it came through."""
    reshape = added.index.maker(name, *_RESHAPES)
    while reshape is not None:
        yield _plain(added.shape(reshape.input[0]))
        reshape = added.index.maker(reshape.input[0], *_RESHAPES)


def _behind(added: Additions, name: str) -> Iterator[Dims]:
    """The dims of what Reshapes make of a value, and of it with zeros added."""
    for reader in added.index.readers.get(name, []):
        if is_op(reader, *_RESHAPES):
            yield _plain(added.shape(reader.output[0]))
        elif not is_op(reader, "Add") or added.index.scalar(other_input(reader, name)) != 0:
            continue
        yield from _behind(added, reader.output[0])


def _plain(dims: Dims) -> Dims:
    """Dims without those of 1 that they begin with, which HTP adds up to four."""
    first = next((axis for axis, size in enumerate(dims) if size != 1), len(dims))
    return dims[first:]
