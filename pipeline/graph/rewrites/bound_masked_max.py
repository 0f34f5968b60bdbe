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

from onnx import NodeProto

from pipeline.graph.ir.attributes import settings
from pipeline.graph.ir.index import GraphIndex, is_op
from pipeline.graph.ir.node_builder import Additions, each_node
from pipeline.graph.rewrites.make_masks_finite import HUGE

_OPPOSITE = {"ReduceMax": "ReduceMin", "ReduceMin": "ReduceMax"}


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace the filler of such a pooling."""
    index = added.index
    where = index.maker(node.input[0], "Where") if is_op(node, *_OPPOSITE) else None
    if where is None or index.sole_reader(where.output[0], node.op_type) is None:
        return False
    for filler, values in ((1, 2), (2, 1)):
        if _is_filler(index, where.input[filler], node) and _same_shape(index, where, values):
            where.input[filler] = _least(added, node, where.input[values])
            return True
    return False


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
    more = {name: value for name, value in settings(pooling).items() if name in ("axes", "noop_with_empty_axes")}
    kind, name = _OPPOSITE[pooling.op_type], f"{pooling.output[0]}_filler"
    return added.op(kind, values, *pooling.input[1:], out=name, keepdims=1, **more)
