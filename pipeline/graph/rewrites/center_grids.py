"""Move the points of a constant grid to the middle of the pixels that they take.

Before (mode "nearest", a constant grid)::

    GridSample(x, grid)

After::

    GridSample(x, middles)

HTP (2.51, emulated) takes the pixel above where a point lies halfway between two, ONNX the even one: 3 for 2. Points of
float16 and of 16 bit integers come to lie on the other side of halfway besides, where a picture has hundreds of pixels.
In the middle of a pixel neither matters.

The result keeps its name. Points outside of the picture stay. Left alone: grids that are computed; other modes; grids
whose points are all in the middle.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from pipeline.graph.ir.attributes import integer, text
from pipeline.graph.ir.index import GraphIndex, is_float, is_op
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.node_builder import Additions, each_node

_CLOSE = 1e-6


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Center the grid of such a node."""
    middles = _middles(added.index, node)
    if middles is None:
        return False
    node.input[1] = added.constant(f"{node.output[0]}_middles", middles)
    return True


def _middles(index: GraphIndex, node: NodeProto) -> NDArray[np.float32] | None:
    """The grid [n, ..., axes] with its points in the middle of pixels; None where nothing is to be moved."""
    if not is_op(node, "GridSample") or not is_float(index, node.output[0]):
        return None
    grid = index.constant(node.input[1])
    if grid is None or text(node, "mode") != "nearest":
        return None
    corners = bool(integer(node, "align_corners"))
    sizes = shape_of(index.types[node.input[0]])[:1:-1]  # the last of a point's numbers is the first of the axes
    moved = grid.astype(np.float32)
    for at, size in enumerate(sizes):
        points = moved[..., at]
        # In float32 and in this order, as onnxruntime computes it: a tie is one there as well.
        places = (points + 1) / 2 * (size - 1) if corners else ((points + 1) * size - 1) / 2
        taken = np.rint(places)
        middles = 2 * taken / max(size - 1, 1) - 1 if corners else (2 * taken + 1) / size - 1
        inside = (taken >= 0) & (taken < size)
        moved[..., at] = np.where(inside, middles, points)
    return None if np.allclose(moved, grid, rtol=0, atol=_CLOSE) else moved
