"""Write an affine grid as the sum of a point's coordinates times the numbers of a matrix.

Before, of a computed matrix and a constant size::

    AffineGrid(theta, size)                                       theta [n, 2, 3], the grid [n, height, width, 2]

After, where each column is one of theta's, as [n, 1, 1, 2], and x and y are constant, as [1, 1, width, 1] and
[1, height, 1, 1]::

    Add(Add(Mul(column, x), Mul(column, y)), last column)

and so for volumes, with a third axis. QNN (EP 2.7) leaves AffineGrid to the CPU. A product of matrices would have one
of its operands in 8 bits, half a pixel of 256.

The result keeps its name. Left alone: one row or column of pixels whose corners are to be met (`align_corners`), of
which runtimes make different points; types other than float32.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from pipeline.graph.ir.attributes import integer
from pipeline.graph.ir.index import is_float32, is_op
from pipeline.graph.ir.node_builder import Additions, each_node


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace an AffineGrid."""
    if not is_op(node, "AffineGrid") or not is_float32(added.index, node.output[0]):
        return False
    size, meets = added.index.constant(node.input[1]), bool(integer(node, "align_corners"))
    if size is None or (meets and 1 in size[2:].tolist()):
        return False
    result, sizes = node.output[0], size[2:].tolist()
    rank = len(sizes)
    total = ""
    for at in range(rank):  # the first column is for the last axis
        axis = rank - 1 - at
        points = added.constant(f"{result}_points", _points(sizes[axis], meets).reshape(_along(axis, rank)))
        part = added.op("Mul", _column(added, node, at, rank), points, out=f"{result}_part")
        total = added.op("Add", total, part, out=f"{result}_sum") if total else part
    added.replace("Add", total, _column(added, node, rank, rank), out=result)
    return True


def _points(count: int, meets: bool) -> NDArray[np.float32]:
    """Where the pixels of an axis are: their middles, or such points that the first is -1 and the last 1."""
    places = np.linspace(-1, 1, count) if meets else (2 * np.arange(count) + 1) / count - 1
    return places.astype(np.float32)


def _along(axis: int, rank: int) -> list[int]:
    dims = [1] * (rank + 2)
    dims[1 + axis] = -1
    return dims


def _column(added: Additions, node: NodeProto, at: int, rank: int) -> str:
    """A column of each matrix, float32 [n, 1 for each axis, numbers]."""
    theta, result = node.input[0], node.output[0]
    bounds = added.integers(f"{result}_from", at), added.integers(f"{result}_to", at + 1)
    column = added.op("Slice", theta, *bounds, added.integers(f"{result}_axis", 2), out=f"{result}_column")
    dims = added.integers(f"{result}_column_dims", added.shape(theta)[0], *[1] * rank, rank)
    return added.op("Reshape", column, dims, out=f"{result}_column_flat")
