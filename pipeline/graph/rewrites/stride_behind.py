"""Take every second place behind a convolution in groups that has dilations, in place of computing those alone.

Before (two axes, group > 1)::

    Conv(x, w, b) <strides = [2, 2], dilations = [2, 2], group>

After::

    Slice(Conv(x, w, b) <dilations = [2, 2], group>, steps = [2, 2])

The places that are kept are the same sums. Of a convolution over planes that has groups, strides and dilations QNN's
compiler (2.51) compiles nothing: in integers, depthwise ones of 3 by 3 taps apart; in float16, if it is depthwise. An
AveragePool with both becomes one. Without groups gather_taps writes it otherwise.

The result keeps its name. Left alone: one axis, or three; padding that is not written out.
"""

from __future__ import annotations

from onnx import NodeProto

from pipeline.graph.ir.attributes import settings
from pipeline.graph.ir.index import is_op
from pipeline.graph.ir.node_builder import Additions, each_node

_PLANES = 4


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Move the strides of a dilated Conv in groups behind it."""
    if not is_op(node, "Conv") or len(added.shape(node.input[0])) != _PLANES:
        return False
    given = settings(node)
    strides = given.pop("strides", [1, 1])
    if given.get("group", 1) == 1 or max(strides) == 1 or max(given.get("dilations", [1, 1])) == 1:
        return False
    if given.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        return False
    result = node.output[0]
    every = added.op("Conv", *node.input, out=f"{result}_every", **given)
    sizes = added.shape(every)[2:]
    bounds = added.integers(f"{result}_first", 0, 0), added.integers(f"{result}_last", *sizes)
    axes, steps = added.integers(f"{result}_axes", 2, 3), added.integers(f"{result}_steps", *strides)
    added.replace("Slice", every, *bounds, axes, steps, out=result)
    return True
