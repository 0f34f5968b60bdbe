"""Resize to the nearest neighbour by looking elements up.

Before (x float32, mode "nearest", sizes or scales constant, other than by `asymmetric` coordinates and `floor`)::

    Resize(x)

After, where the same elements are taken as by those::

    Resize(x) <asymmetric, floor>

and else, for each axis whose elements change::

    Gather(x, [0, 0, 1, 2, 2, ...])

HTP (2.51, emulated) is right for `asymmetric` and `floor` by any sizes, as torch exports it, and takes another
neighbour or leaves the Resize to the CPU for most other pairs; which, depends on the factor. It goes by sizes where
scales are given, too: 11 by 1.3 are 14, which are 14 / 11 to it.

The result keeps its name. Left alone: `asymmetric` with `floor`, `half_pixel` and `align_corners` with
`round_prefer_ceil`, where the sizes come to the scales; regions of interest.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from pipeline.graph.ir.index import GraphIndex, opset
from pipeline.graph.ir.node_builder import Additions, each_node
from pipeline.graph.ir.resizes import AlongAxis, Resize, places, read_resize
from pipeline.graph.rewrites.resize_by_products import resized

_PLAIN = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
_RIGHT = {("asymmetric", "floor"), ("half_pixel", "round_prefer_ceil"), ("align_corners", "round_prefer_ceil")}
_COORDINATES = {"half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners", "half_pixel_symmetric"}


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace a Resize to the nearest neighbour."""
    taken = _taken(added.index, node)
    if taken is not None:
        _replace(added, node, taken)
    return taken is not None


def _taken(index: GraphIndex, node: NodeProto) -> dict[int, NDArray[np.int64]] | None:
    """Axis -> the elements that a Resize takes along it, of one that is to be replaced; axes that stay are left out."""
    resize = read_resize(index, node)
    if resize is None or resize.mode != "nearest" or resize.coordinates not in _COORDINATES:
        return None
    if (resize.coordinates, resize.nearest) in _RIGHT and not resize.takes_scale():
        return None
    by_axis = {}
    for each in resize.axes:
        if resize.scaled and not each.is_cut:
            found = _rounded(resize, each)
        else:
            row = np.arange(each.size, dtype=np.float32)[None]
            found = resized(resize, each, row, opset(index.model))[0].astype(np.int64)
        if not np.array_equal(found, np.arange(each.size)):
            by_axis[each.axis] = found
    return by_axis or None


def _rounded(resize: Resize, along: AlongAxis) -> NDArray[np.int64]:
    """The elements that are taken where the size of the result was rounded up, as it is for a ratio that is kept."""
    at = places(resize.coordinates, along)
    rounded = {
        "floor": np.floor(at),
        "ceil": np.ceil(at),
        "round_prefer_floor": np.ceil(at - 0.5),
        "round_prefer_ceil": np.floor(at + 0.5),
    }[resize.nearest]
    return rounded.clip(0, along.size - 1).astype(np.int64)


def _replace(added: Additions, node: NodeProto, taken: dict[int, NDArray[np.int64]]) -> None:
    source, result = node.input[0], node.output[0]
    dims = added.shape(source)
    plain = {axis: np.arange(len(chosen)) * dims[axis] // len(chosen) for axis, chosen in taken.items()}
    if all(np.array_equal(chosen, plain[axis]) for axis, chosen in taken.items()):
        sizes = added.integers(f"{result}_sizes", *added.shape(result))
        added.replace("Resize", source, "", "", sizes, out=result, mode="nearest", **_PLAIN)
        return
    *others, last = sorted(taken)
    for axis in others:
        indices = added.constant(f"{result}_places_{axis}", taken[axis])
        source = added.op("Gather", source, indices, out=f"{result}_along_{axis}", axis=axis)
    indices = added.constant(f"{result}_places_{last}", taken[last])
    added.replace("Gather", source, indices, out=result, axis=last)
