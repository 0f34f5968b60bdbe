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

from pathlib import Path
from typing import Literal

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from pipeline.graph.ir.index import GraphIndex, substitute
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.node_builder import Additions
from pipeline.graph.ir.pads import pad_mode

NAME = "gather_edges"

_MOST_DIMS = 4
_MODES: dict[str, Literal["edge", "reflect", "wrap"]] = {"edge": "edge", "reflect": "reflect", "wrap": "wrap"}


def apply(model: ModelProto, folder: Path) -> int:
    """Replace every such Pad; returns their number."""
    index = GraphIndex(model, folder)
    added = Additions(index)
    found = []
    for node in model.graph.node:
        pads = _pads(index, node)
        if pads is not None:
            _replace(added, node, pads, shape_of(index.types[node.input[0]]))
            found.append(node)
    if found:
        substitute(model, found, added.finish())
    return len(found)


def _pads(index: GraphIndex, node: NodeProto) -> dict[int, tuple[int, int]] | None:
    """Axis -> elements in front and behind, of a Pad that is to be replaced."""
    mode = pad_mode(node)
    if mode in ("", "constant"):
        return None
    kind = index.types.get(node.input[0])
    given = index.constant(node.input[1]) if len(node.input) > 1 else None
    if kind is None or kind.tensor_type.elem_type != TensorProto.FLOAT or given is None:
        return None
    rank = len(shape_of(kind))
    chosen = index.constant(node.input[3]) if len(node.input) > 3 and node.input[3] else np.arange(rank)
    if chosen is None or (given < 0).any():
        return None
    axes = [int(axis) % rank for axis in chosen.ravel()]
    pads = {axis: (int(given[at]), int(given[len(axes) + at])) for at, axis in enumerate(axes)}
    sizes = shape_of(kind)
    if mode == "reflect" and any(max(ends) >= sizes[axis] for axis, ends in pads.items()):
        return None
    last = mode == "edge" and any(pads.get(rank - 1, ()))
    unknown = mode == "wrap" or (rank > _MOST_DIMS and mode in ("edge", "reflect"))
    return pads if (last or unknown) and given.any() else None


def _replace(added: Additions, node: NodeProto, pads: dict[int, tuple[int, int]], dims: tuple[int, ...]) -> None:
    source, result = node.input[0], node.output[0]
    padded = [axis for axis, ends in sorted(pads.items()) if any(ends)]
    for axis in padded:
        front, behind = pads[axis]
        places = np.pad(np.arange(dims[axis]), (front, behind), mode=_MODES[pad_mode(node)])
        indices = added.constant(f"{result}_places_{axis}", places.astype(np.int64))
        if axis == padded[-1]:
            added.replace("Gather", source, indices, out=result, axis=axis)
        else:
            source = added.op("Gather", source, indices, out=f"{result}_padded_{axis}", axis=axis)
