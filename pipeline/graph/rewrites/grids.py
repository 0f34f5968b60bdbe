"""GridSample."""

from __future__ import annotations

import numpy as np

from pipeline.graph.ir.index import FLOATS
from pipeline.graph.ir.rules import F32, GraphValue, Node, lower, op

_CLOSE = 1e-6


@lower("GridSample", of=FLOATS)
def center_grids(n: Node) -> bool:
    """Move the points of a constant grid, in mode "nearest", to the middle of the pixels that they take.

    HTP (2.51, emulated) takes the pixel above where a point lies halfway between two, ONNX the even one: 3 for 2.
    Points of float16 and of 16 bit integers lie on the other side of halfway besides, where a picture has hundreds of
    pixels. Points outside of the picture stay.
    """
    grid = n[1].array
    if grid is None or n.attr("mode", "") != "nearest":
        return False
    corners, moved = n.attr("align_corners", 0), grid.astype(np.float32)
    for at, size in enumerate(n[0].shape[:1:-1]):  # the last of a point's numbers is the first of the axes
        points = moved[..., at]
        # In float32 and in this order, as onnxruntime computes it: a tie is one there as well.
        places = (points + 1) / 2 * (size - 1) if corners else ((points + 1) * size - 1) / 2
        taken = np.rint(places)
        middles = 2 * taken / max(size - 1, 1) - 1 if corners else (2 * taken + 1) / size - 1
        moved[..., at] = np.where((taken >= 0) & (taken < size), middles, points)
    return not np.allclose(moved, grid, rtol=0, atol=_CLOSE) and n.read(1, n.constant(moved))


@lower("AffineGrid", of=F32)
def write_out_grids(n: Node) -> GraphValue | None:
    """``AffineGrid(theta, size) -> column * x + column * y + last column``, and so for volumes, for a constant size.

    A column of theta is [n, 1, 1, 2], and x and y are constants [1, 1, width, 1] and [1, height, 1, 1]. QNN (EP 2.7)
    leaves AffineGrid to the CPU. A product of matrices would have an operand in 8 bits, half a pixel of 256. Left
    alone: one row or column of pixels with `align_corners`, of which runtimes make different points.
    """
    size, meets = n[1].array, bool(n.attr("align_corners", 0))
    if size is None or (meets and 1 in size[2:].tolist()):
        return None
    sizes = size[2:].tolist()
    rank = len(sizes)
    total = None
    for at in range(rank):  # the first column is for the last axis
        axis = rank - 1 - at
        count = sizes[axis]
        points = np.linspace(-1, 1, count) if meets else (2 * np.arange(count) + 1) / count - 1
        along = [-1 if place == 1 + axis else 1 for place in range(rank + 2)]
        part = op.Mul(_column(n, at, rank), points.astype(np.float32).reshape(along))
        total = part if total is None else total + part
    assert total is not None
    return total + _column(n, rank, rank)


def _column(n: Node, at: int, rank: int) -> GraphValue:
    """A column of each matrix, float32 [n, 1 for each axis, numbers]."""
    return n[0].slice([at], [at + 1], [2]).reshape(n[0].shape[0], *[1] * rank, rank)
