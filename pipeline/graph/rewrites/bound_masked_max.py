"""Pool the largest values without a huge filler for those that are masked.

Before::

    ReduceMax(Where(mask, x, -1e9))          or -inf, and Where(hidden, -1e9, x); ReduceMin with 1e9

After::

    ReduceMax(Where(mask, x, ReduceMin(x)))          over the same axes

which is the same wherever anything is shown, as no value is less than the least. With the filler, the encoding of what
goes into ReduceMax has no step left for x: 0 dB of SQNR in 16 bits; -inf has no encoding at all.

The result keeps its name. Left alone: a filler that is no constant, or of less than 10000; a Where that something other
than the pooling reads, or that broadcasts what it selects from.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onnx import ModelProto, NodeProto

from pipeline.graph.ir.index import GraphIndex, is_op, sort_nodes
from pipeline.graph.ir.node_builder import Additions
from pipeline.graph.rewrites.make_masks_finite import HUGE

NAME = "bound_masked_max"

_OPPOSITE = {"ReduceMax": "ReduceMin", "ReduceMin": "ReduceMax"}


def apply(model: ModelProto, folder: Path) -> int:
    """Replace the filler of every such pooling; returns their number."""
    index = GraphIndex(model, folder)
    added = Additions(index)
    replaced = 0
    for node in model.graph.node:
        if not is_op(node, *_OPPOSITE):
            continue
        where = index.maker(node.input[0], "Where")
        if where is None or index.sole_reader(where.output[0], node.op_type) is None:
            continue
        for filler, values in ((1, 2), (2, 1)):
            if _is_filler(index, where.input[filler], node) and _same_shape(index, where, values):
                where.input[filler] = _least(added, node, where.input[values])
                replaced += 1
    if replaced:
        model.graph.node.extend(added.finish())
        sort_nodes(model)
    return replaced


def _is_filler(index: GraphIndex, name: str, pooling: NodeProto) -> bool:
    """Whether a constant is beyond all values on the side that the pooling doesn't look for."""
    array = index.constant(name) if name in index.initializers else None
    if array is None or array.dtype.kind != "f" or not array.size:
        return False
    return bool((array <= -HUGE).all() if pooling.op_type == "ReduceMax" else (array >= HUGE).all())


def _same_shape(index: GraphIndex, where: NodeProto, values: int) -> bool:
    types = index.types
    return where.input[values] in types and types[where.input[values]] == types.get(where.output[0])


def _least(added: Additions, pooling: NodeProto, values: str) -> str:
    """The least of the values that the pooling reduces (the largest, for a ReduceMin), with all axes kept."""
    given = {attribute.name: attribute for attribute in pooling.attribute}
    more: dict[str, Any] = {"axes": list(given["axes"].ints)} if "axes" in given else {}
    if "noop_with_empty_axes" in given:
        more["noop_with_empty_axes"] = given["noop_with_empty_axes"].i
    kind, name = _OPPOSITE[pooling.op_type], f"{pooling.output[0]}_filler"
    return added.op(kind, values, *pooling.input[1:], out=name, keepdims=1, **more)
