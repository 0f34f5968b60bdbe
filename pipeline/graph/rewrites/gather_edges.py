"""Pad with edges by looking elements up.

Before (edges of the last axis, alone or with others; edges or reflections of 5 dims; what goes around, `wrap`)::

    Pad(x, pads, mode "edge")

After, for each padded axis::

    Gather(x, [0, 0, 0, 1, 2, ..., n - 1, n - 1])

HTP (2.51, emulated) pads the last axis with zeros in float16, whatever the rank; other axes are right. Edges and
reflections of 5 dims it leaves to the CPU in float16; in integers it compiles nothing, or its emulator crashes. What
goes around it always leaves to the CPU.

The result keeps its name. Left alone: constant pads; edges of other axes alone and reflections, up to 4 dims; pads that
are negative or computed, and reflections over more than there is; types other than float32.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from onnx import NodeProto

from pipeline.graph.ir.index import GraphIndex, is_float32
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.node_builder import Additions, each_node
from pipeline.graph.ir.pads import pad_mode, pad_widths

_MOST_DIMS = 4
_MODES: dict[str, Literal["edge", "reflect", "wrap"]] = {"edge": "edge", "reflect": "reflect", "wrap": "wrap"}


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace a Pad that copies what is inside."""
    pads = _pads(added.index, node)
    if pads is not None:
        _replace(added, node, pads)
    return pads is not None


def _pads(index: GraphIndex, node: NodeProto) -> dict[int, tuple[int, int]] | None:
    """Axis -> elements in front and behind, of a Pad that is to be replaced."""
    mode = pad_mode(node)
    if mode in ("", "constant"):
        return None
    if node.input[0] not in index.types or not is_float32(index, node.input[0]):
        return None
    pads = pad_widths(index, node)
    widths = [width for ends in (pads or {}).values() for width in ends]
    if pads is None or min(widths, default=0) < 0:
        return None
    sizes = shape_of(index.types[node.input[0]])
    rank = len(sizes)
    if mode == "reflect" and any(max(ends) >= sizes[axis] for axis, ends in pads.items()):
        return None
    last = mode == "edge" and any(pads.get(rank - 1, ()))
    unknown = mode == "wrap" or (rank > _MOST_DIMS and mode in ("edge", "reflect"))
    return pads if (last or unknown) and any(widths) else None


def _replace(added: Additions, node: NodeProto, pads: dict[int, tuple[int, int]]) -> None:
    source, result = node.input[0], node.output[0]
    dims = added.shape(source)
    padded = [axis for axis, ends in sorted(pads.items()) if any(ends)]
    for axis in padded:
        front, behind = pads[axis]
        places = np.pad(np.arange(dims[axis]), (front, behind), mode=_MODES[pad_mode(node)])
        indices = added.constant(f"{result}_places_{axis}", places.astype(np.int64))
        if axis == padded[-1]:
            added.replace("Gather", source, indices, out=result, axis=axis)
        else:
            source = added.op("Gather", source, indices, out=f"{result}_padded_{axis}", axis=axis)
