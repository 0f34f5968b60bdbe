"""Lookups: Gather, GatherND, and the slices that are woven together.

Figures are of QNN EP 2.7 and HTP 2.51, emulated. Results keep their names.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from pipeline.graph.ir.axis_groups import MOST_DIMS
from pipeline.graph.ir.index import is_op
from pipeline.graph.ir.rules import F32, GraphValue, Node, lower, op


@lower(
    "Gather",
    after={
        "gather_at_once": "it looks for chains of lookups over more dims",
        "gather_edges": "pads of 5 dims become lookups along the first",
        "gather_neighbours": "nearest neighbours of 5 dims become lookups along the first",
    },
)
def flatten_gathers(n: Node) -> GraphValue | None:
    """Look elements up along the middle one of three dims, by one row, where the result has 5, or the data one.

    ``Gather(x [a, b, c, d], i [i, j], axis=2) -> Reshape(Gather(x [a b, c, d], i [i j], axis=1), [a, b, i, j, d])``.
    HTP takes other elements in 8 and 16 bits (2.61 for -2.85), along the first axis compiles nothing, and in float16
    makes a context that its own emulator can't run. A lookup along the first of 5 dims it does not compile either. A
    lookup of several dims of places in a row, as torch writes `as_strided`, ends the compiler's process where a
    Transpose reads it and another one stands before it: onnxruntime (1.31.1) moves the second through the lookup by a
    permutation of one dim. Left alone: results of more than 5 dims, those of less out of more than a row, and one index
    or a row of them for another axis than the first of 5, which are right.
    """
    dims, places = n[0].shape, n[1].shape
    made, axis = len(dims) + len(places) - 1, n.attr("axis", 0) % len(dims)
    if made > MOST_DIMS or len(dims) > MOST_DIMS:
        return None
    if not (made == MOST_DIMS or len(dims) == 1 if len(places) > 1 else len(dims) == MOST_DIMS and axis == 0):
        return None
    rows = n[0].shaped(math.prod(dims[:axis]), dims[axis], math.prod(dims[axis + 1 :]), always=True)
    taken = op.Gather(rows, n[1].shaped(math.prod(places), always=True), axis=1)
    return taken.reshape(*dims[:axis], *places, *dims[axis + 1 :])


@lower("GatherND")
def flatten_gather_nd(n: Node) -> GraphValue | None:
    """A GatherND with known indices is a Reshape if it takes each element once in order, else a Gather of one axis.

    PyTorch's dynamo exporter writes ``mask[batch, position]``, which every attention mask of transformers goes through,
    as a GatherND. QNN leaves that of a boolean to the CPU, between two partitions, and takes either form.
    """
    indices, dims, batch_dims = n[1].array, n[0].shape, n.attr("batch_dims", 0)
    if indices is None or not indices.size or 0 in dims:
        return None
    indexed = batch_dims + indices.shape[-1]
    places = _counted(indices, dims[:indexed], batch_dims)
    count, rest = math.prod(dims[:indexed]), dims[indexed:]
    if np.array_equal(places.ravel(), np.arange(count)):
        return n[0].reshape(*places.shape, *rest)
    return op.Gather(n[0].reshape(count, *rest), n.constant(places, f"{n.y.name}_places"), axis=0)


def _counted(indices: NDArray[Any], dims: tuple[int, ...], batch_dims: int) -> NDArray[np.int64]:
    """Each index tuple as one number: its place among all places of the indexed dims, in their order."""
    places: NDArray[np.int64] = np.zeros(indices.shape[:-1], np.int64)
    grid = np.indices(indices.shape[:batch_dims])
    for axis, size in enumerate(dims):
        if axis < batch_dims:
            along: NDArray[Any] = grid[axis].reshape(*indices.shape[:batch_dims], *(1,) * (places.ndim - batch_dims))
        else:
            along = indices[..., axis - batch_dims]
            along = np.where(along < 0, along + size, along)
        places = places * size + along
    return places


@lower("Concat")
def gather_pairs(n: Node) -> int:
    """``Concat(Unsqueeze(Neg(Slice(x, 1::2))), Unsqueeze(Slice(x, 0::2)))`` along a new last axis takes Gathers.

    So are the rotary positions of GPT-J and RoFormer. HTP takes slice and weaving together for one copy, and forgets
    that one half has another encoding than x: 9 dB instead of 86, though right in float16. Left alone: a Slice along
    other axes, that steps by one or backwards, or whose result goes elsewhere.
    """
    replaced = 0
    for source in _woven(n):
        channels = _channels(source)
        if channels is not None:
            places = n.constant(channels, f"{source.y.name}_channels")
            made = helper.make_node("Gather", [source[0].name, places.name], [source.y.name], source.name, axis=-1)
            source.proto.CopyFrom(made)  # in its place: another Concat may read it
            replaced += 1
    return replaced


def _woven(concat: Node) -> Iterator[Node]:
    """The Slices whose results a Concat weaves together: each is given a last axis of one element, and joined there."""
    if concat.y.name not in concat.index.types or concat.attr("axis", 0) not in (-1, len(concat.y.shape) - 1):
        return
    for value in concat.inputs:
        widened = value.maker("Unsqueeze", "Reshape") if value else None
        if value is None or widened is None or value.shape[-1:] != (1,):
            continue
        between = widened[0].maker("Abs", "Cast", "Div", "Identity", "Mul", "Neg", "Relu")
        made = (between or widened)[0].maker("Slice")
        if made is not None and is_op(made.proto, "Slice"):
            yield made


def _channels(n: Node) -> NDArray[np.int64] | None:
    """The places along the last axis that a Slice takes, if it steps over some and slices that axis only."""
    given = [each.array if each else None for each in n.inputs[1:]]
    if n[0].name not in n.index.types or len(given) != 4:  # without axes or steps, it steps over nothing
        return None
    if any(values is None or values.size != 1 for values in given):
        return None
    start, end, axis, step = (int(values.item()) for values in given if values is not None)
    dims = n[0].shape
    if axis not in (-1, len(dims) - 1) or step < 2:
        return None
    return np.arange(dims[-1], dtype=np.int64)[slice(start, end, step)]


_ROWS = {4: 16, 8: 16, 16: 8, 32: 4}
"""Elements of a row -> rows in a vector of 128 bytes, in both 8 and 16 bits where they are wrong."""


@lower(
    "Gather",
    of=F32,
    after={
        "gather_at_once": "it writes lookups of one axis",
        "gather_edges": "it writes lookups in place of a Pad",
        "gather_neighbours": "it writes lookups in place of a Resize",
        "gather_taps": "it writes lookups in place of a convolution",
        "flatten_gather_nd": "it writes lookups of rows",
        "flatten_gathers": "it writes lookups behind blocks",
        "count_indices_from_the_front": "rows that are added at the end would be those that it counts",
    },
)
def add_spare_rows(n: Node) -> GraphValue | None:
    """``Gather(x, indices) -> Gather(Concat(x, spare), indices)`` for narrow rows and 32 indices or more.

    The spare rows are zero, and make all rows but one fill whole vectors of 128 bytes. A constant x is stored with
    them, and constant indices that count from its end count from its front. With several blocks before the rows (x [b,
    n, w]) it is ``Transpose(Gather(Transpose(x, [n, b, w]), indices), [b, i, w])``.

    HTP takes something else for the last row of 4, 8 or 16 elements of 16 bits, or 8, 16 or 32 computed ones of 8 bits,
    in a lookup of 32 or more (off by 4.8; 31 are right), unless the rows but one fill whole vectors. Of several blocks
    nearly everything is wrong, whatever the number of rows. Left alone: what is right, which is float16, other widths,
    and constant tables of 32 elements a row.
    """
    x, indices, dims, places = n[0], n[1], n[0].shape, n[1].shape
    axis = n.attr("axis", 0) % len(dims)
    blocks, rows, width = math.prod(dims[:axis]), dims[axis], math.prod(dims[axis + 1 :])
    if math.prod(places) < 32 or not _is_wrong(blocks, rows, width, constant=x.is_constant):
        return None
    taken = indices.array
    if taken is not None and (taken < 0).any():
        indices = n.constant(np.where(taken < 0, taken + rows, taken))
    if blocks == 1:
        return op.Gather(_with_spare_rows(n, x, x.array, axis, _ROWS[width]), indices, axis=axis)
    values = x.array
    if values is not None:
        values = np.ascontiguousarray(values.reshape(blocks, rows, width).transpose(1, 0, 2))
    behind = n.constant(values) if values is not None else x.reshape(blocks, rows, width).transpose(1, 0, 2)
    if _is_wrong(1, rows, blocks * width, constant=x.is_constant):
        behind = _with_spare_rows(n, behind, None, 0, _ROWS[blocks * width])
    row = indices if len(places) == 1 else indices.reshape(math.prod(places))
    return op.Gather(behind, row, axis=0).transpose(1, 0, 2).reshape(*n.y.shape)


def _is_wrong(blocks: int, rows: int, width: int, *, constant: bool) -> bool:
    if width not in _ROWS or (constant and width == max(_ROWS)):
        return False
    return blocks > 1 or (blocks == 1 and rows % _ROWS[width] != 1)


def _with_spare_rows(n: Node, x: GraphValue, values: NDArray[Any] | None, axis: int, whole: int) -> GraphValue:
    """A value with rows of zero at the end of an axis, so that all but one are a multiple of `whole`."""
    dims = list(x.shape)
    dims[axis] = (1 - dims[axis]) % whole
    zeros = np.zeros(dims, np.float32)
    if values is not None:
        return n.constant(np.concatenate([values, zeros], axis=axis), f"{x.name}_spare")
    return op.Concat(x, zeros, axis=axis)
