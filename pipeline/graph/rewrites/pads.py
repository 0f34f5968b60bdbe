"""Pads that copy elements of their input."""

from __future__ import annotations

from typing import Literal

import numpy as np

from pipeline.graph.ir.pads import pad_mode, pad_widths
from pipeline.graph.ir.rules import GraphValue, Node, lower, op

_MODES: dict[str, Literal["edge", "reflect", "wrap"]] = {"edge": "edge", "reflect": "reflect", "wrap": "wrap"}


@lower("Pad")
def gather_edges(n: Node) -> GraphValue | None:
    """``Pad(x, edge) -> Gather(x, [0, 0, 0, 1, ..., n - 1, n - 1])`` for each padded axis.

    HTP (2.51, emulated) pads edges of the last axis with zeros in float16, whatever the rank; other axes are right.
    Edges and reflections of 5 dims it leaves to the CPU in float16; in integers it compiles nothing, or its emulator
    crashes. `wrap` it always leaves to the CPU. Left alone: constant pads; edges of other axes alone and reflections,
    up to 4 dims; negative or computed pads, and reflections over more than there is.
    """
    mode, x = pad_mode(n.proto), n[0]
    pads = pad_widths(n.index, n.proto) if mode in _MODES and x.is_f32 and x.name in n.index.types else None
    if pads is None or min((width for ends in pads.values() for width in ends), default=0) < 0:
        return None
    dims = x.shape
    padded = {axis: ends for axis, ends in sorted(pads.items()) if any(ends)}
    if mode == "reflect" and any(max(ends) >= dims[axis] for axis, ends in padded.items()):
        return None
    if not padded or not (mode == "wrap" or len(dims) > 4 or (mode == "edge" and len(dims) - 1 in padded)):
        return None
    for axis, ends in padded.items():
        x = op.Gather(x, np.pad(np.arange(dims[axis]), ends, mode=_MODES[mode]).astype(np.int64), axis=axis)
    return x
