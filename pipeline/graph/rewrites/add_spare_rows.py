"""Give what narrow rows are looked up in spare rows at its end, and put what stands before its axis behind it.

Before (x float32 [n, 4, 8, 16 or 32], 32 indices or more)::

    Gather(x, indices)

After, where the spare rows are zero, and make all rows but one fill whole vectors of 128 bytes::

    Gather(Concat(x, spare), indices)

A constant x is stored with its spare rows, and constant indices that count from its end count from its front. With
several blocks before the rows (x [b, n, w])::

    Transpose(Gather(Transpose(x, [n, b, w]), indices), [b, i, w])

HTP (2.51, emulated) takes something else for the last row of 4, 8 or 16 elements of 16 bits, or 8, 16 or 32 computed
ones of 8 bits, in a lookup of 32 or more (off by 4.8; 31 are right), unless the rows but one fill whole vectors. Of
several blocks nearly everything is wrong, whatever the number of rows. Nothing is rounded: the spare rows are zero,
which is in every range. The result keeps its name.

Left alone: what is right, which is float16, other widths, and constant tables of 32 elements a row.
"""

from __future__ import annotations

from math import prod

import numpy as np
from onnx import NodeProto

from pipeline.graph.ir.attributes import integer
from pipeline.graph.ir.index import is_float32, is_op
from pipeline.graph.ir.node_builder import Additions, each_node

_FEWEST = 32
_ROWS = {4: 16, 8: 16, 16: 8, 32: 4}
"""Elements of a row -> rows in a vector of 128 bytes, in both 8 and 16 bits where they are wrong."""


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Widen what a Gather of narrow rows looks them up in."""
    if not is_op(node, "Gather") or not is_float32(added.index, node.input[0]):
        return False
    data, indices = node.input
    dims, places = added.shape(data), added.shape(indices)
    axis = integer(node, "axis") % len(dims)
    blocks, rows, width = prod(dims[:axis]), dims[axis], prod(dims[axis + 1 :])
    constant = data in added.index.initializers
    if prod(places) < _FEWEST or not _is_wrong(blocks, rows, width, constant=constant):
        return False
    result = node.output[0]
    taken = added.index.constant(indices)
    if taken is not None and (taken < 0).any():
        indices = added.constant(f"{result}_from_the_front", np.where(taken < 0, taken + rows, taken))
    if blocks == 1:
        wide = _with_spare_rows(added, data, axis, _ROWS[width], f"{result}_spare")
        added.replace("Gather", wide, indices, out=result, axis=axis)
        return True
    behind = _rows_first(added, data, (blocks, rows, width), f"{result}_rows_first")
    if _is_wrong(1, rows, blocks * width, constant=constant):
        behind = _with_spare_rows(added, behind, 0, _ROWS[blocks * width], f"{result}_spare")
    row = _as_row(added, indices, places, f"{result}_row")
    found = added.op("Gather", behind, row, out=f"{result}_found", axis=0)
    back = added.op("Transpose", found, out=f"{result}_back", perm=[1, 0, 2])
    added.replace("Reshape", back, added.integers(f"{result}_dims", *added.shape(result)), out=result)
    return True


def _is_wrong(blocks: int, rows: int, width: int, *, constant: bool) -> bool:
    if width not in _ROWS or (constant and width == max(_ROWS)):
        return False
    return blocks > 1 or (blocks == 1 and rows % _ROWS[width] != 1)


def _with_spare_rows(added: Additions, name: str, axis: int, whole: int, stem: str) -> str:
    """A value with rows of zero behind its own along an axis, so that all but one are a multiple of `whole`."""
    dims = list(added.shape(name))
    dims[axis] = (1 - dims[axis]) % whole
    zeros = np.zeros(dims, np.float32)
    values = added.index.constant(name)
    if values is not None:
        return added.constant(stem, np.concatenate([values, zeros], axis=axis))
    return added.op("Concat", name, added.constant(f"{stem}_zeros", zeros), out=stem, axis=axis)


def _rows_first(added: Additions, name: str, dims: tuple[int, int, int], stem: str) -> str:
    """A value of these blocks, rows and elements as [rows, blocks, elements]."""
    values = added.index.constant(name)
    if values is not None:
        return added.constant(stem, np.ascontiguousarray(values.reshape(dims).transpose(1, 0, 2)))
    flat = added.op("Reshape", name, added.integers(f"{stem}_dims", *dims), out=f"{stem}_flat")
    return added.op("Transpose", flat, out=stem, perm=[1, 0, 2])


def _as_row(added: Additions, name: str, dims: tuple[int, ...], stem: str) -> str:
    """Indices as one row."""
    if len(dims) == 1:
        return name
    return added.op("Reshape", name, added.integers(f"{stem}_dims", prod(dims)), out=stem)


AFTER = {
    "gather_at_once": "it writes lookups of one axis",
    "gather_edges": "it writes lookups in place of a Pad",
    "gather_neighbours": "it writes lookups in place of a Resize",
    "gather_taps": "it writes lookups in place of a convolution",
    "flatten_gather_nd": "it writes lookups of rows",
    "flatten_gathers": "it writes lookups behind blocks",
    "count_indices_from_the_front": "rows that are added at the end would be those that it counts",
}
