"""Take every second channel by Gather, where the halves are to be woven together again.

Before, the rotary positions of GPT-J and RoFormer::

    Concat(Unsqueeze(Neg(Slice(x, 1::2))), Unsqueeze(Slice(x, 0::2)))          along a new last axis

After::

    Concat(Unsqueeze(Neg(Gather(x, [1, 3, ...]))), Unsqueeze(Gather(x, [0, 2, ...])))

HTP (2.51, all architectures, emulated) takes slice and weaving together for one copy, and forgets that one half has
another encoding than x: 9 dB of SQNR instead of 86, though right in float16.

The results keep their names. Left alone: a Slice along other axes, that steps by one or backwards, or whose result goes
elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper

from pipeline.graph.ir.attributes import integer
from pipeline.graph.ir.index import GraphIndex, LazyIndex, is_op
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.node_builder import Additions

_BETWEEN = ("Abs", "Cast", "Div", "Identity", "Mul", "Neg", "Relu")


def apply(model: ModelProto, folder: Path) -> int:
    """Replace every such Slice; returns their number."""
    added = Additions(LazyIndex(model, folder))
    replaced = 0
    for node in model.graph.node:
        for source in _slices(added.index, node) if is_op(node, "Concat") else ():
            channels = _channels(added.index, source)
            if channels is None:
                continue
            inputs = [source.input[0], added.constant(f"{source.output[0]}_channels", channels)]
            source.CopyFrom(helper.make_node("Gather", inputs, list(source.output), source.name, axis=-1))
            replaced += 1
    added.join()
    return replaced


def _slices(index: GraphIndex, concat: NodeProto) -> Iterator[NodeProto]:
    """The Slices whose results a Concat weaves together: each is given a last axis of one element, and joined there."""
    rank = len(shape_of(index.types[concat.output[0]])) if concat.output[0] in index.types else 0
    axis = integer(concat, "axis")
    if axis not in (-1, rank - 1):
        return
    for name in concat.input:
        widened = index.maker(name, "Unsqueeze", "Reshape")
        if widened is None or shape_of(index.types[name])[-1:] != (1,):
            continue
        made = index.makers.get(widened.input[0])
        if made is not None and is_op(made, *_BETWEEN):
            made = index.makers.get(made.input[0])
        if made is not None and is_op(made, "Slice"):
            yield made


def _channels(index: GraphIndex, node: NodeProto) -> NDArray[np.int64] | None:
    """The places along the last axis that a Slice takes, if it steps over some and slices that axis only."""
    given = [index.constant(name) for name in node.input[1:]]
    if node.input[0] not in index.types or len(given) != 4:  # without axes or steps, it steps over nothing
        return None
    dims = shape_of(index.types[node.input[0]])
    if any(values is None or values.size != 1 for values in given):
        return None
    start, end, axis, step = (int(values.item()) for values in given if values is not None)
    if axis not in (-1, len(dims) - 1) or step < 2:
        return None
    return np.arange(dims[-1], dtype=np.int64)[slice(start, end, step)]
