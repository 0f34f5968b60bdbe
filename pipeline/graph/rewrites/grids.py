"""GridSample."""

from __future__ import annotations

import numpy as np

from pipeline.graph.ir.index import FLOATS
from pipeline.graph.ir.rules import Node, lower

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
