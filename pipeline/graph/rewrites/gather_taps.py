"""Compute a convolution whose taps lie far apart from what lies under each tap.

Before (w float32 [out, in, taps], constant; a Pad in front where the node has pads)::

    Conv(x, w, b) <dilations = [2048]>

After, where each slice has what one tap sees, and w' is [out, taps * in, 1]::

    Conv(Concat(Slice(x), Slice(x), Slice(x), axis = 1), w', b)

Nothing is rounded otherwise: the same products are added. QNN's compiler cuts a long row into tiles, each with all that
its taps reach, so that far taps make it read the row many times over. Time to compile and emulate one of 128 channels
and three taps over 7500 places (QNN 2.51, HTP v73, a busy machine)::

    dilation    w8a16              after     float16            after
    1           15 s
    512         20                 12 s
    1024        34                           over 100 s         8 s
    2048        out of memory
    4096        out of memory      12

Networks that look far back are made of such, each with twice the dilation of the last (WaveNet, TCN). In groups, as
depthwise, QNN takes them (2048: 17 s).

So is a convolution over planes that has both strides and dilations, of which QNN compiles nothing ("Memory allocation
related error", whatever the sizes; over rows it does). In groups stride_behind writes it otherwise.

The result keeps its name. Left alone: taps that reach less than 512 places, or more than nine of them, without both;
more than 49; groups; weights that are computed; padding that is not written out; other types than float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto

from pipeline.graph.ir.attributes import settings
from pipeline.graph.ir.index import GraphIndex, is_op
from pipeline.graph.ir.node_builder import Additions, each_node

_FAR = 512
"""Places between the first tap and the last."""
_MOST_TAPS = 9
_MOST_TAPS_OF_A_PLANE = 49


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace a Conv whose taps lie far apart."""
    given = settings(node) if is_op(node, "Conv") else {}
    if not is_op(node, "Conv") or not _matches(added.index, node, given):
        return False
    _replace(added, node, given)
    return True


def _matches(index: GraphIndex, node: NodeProto, given: Mapping[str, Any]) -> bool:
    weights = index.initializers.get(node.input[1])
    if weights is None or weights.data_type != TensorProto.FLOAT or given.get("group", 1) != 1:
        return False
    if given.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        return False
    kernel = list(weights.dims)[2:]
    dilations = given.get("dilations", [1] * len(kernel))
    if len(kernel) > 1 and max(dilations) > 1 and max(given.get("strides", [1])) > 1:
        return bool(math.prod(kernel) <= _MOST_TAPS_OF_A_PLANE)
    reach = max(((size - 1) * far for size, far in zip(kernel, dilations, strict=True) if far > 1), default=0)
    return reach >= _FAR and math.prod(kernel) <= _MOST_TAPS


def _replace(added: Additions, node: NodeProto, given: Mapping[str, Any]) -> None:
    source, result = str(node.input[0]), str(node.output[0])
    weights = added.index.constant(node.input[1])
    assert weights is not None
    kernel, rank = weights.shape[2:], weights.ndim - 2
    dilations, strides = given.get("dilations", [1] * rank), given.get("strides", [1] * rank)
    pads = given.get("pads", [0] * 2 * rank)
    if any(pads) and given.get("auto_pad", b"NOTSET") == b"NOTSET":
        around = added.integers(f"{result}_pads", 0, 0, *pads[:rank], 0, 0, *pads[rank:])
        source = added.op("Pad", source, around, out=f"{result}_padded", mode="constant")
    made = added.shape(result)[2:]
    axes, steps = added.integers(f"{result}_axes", *range(2, 2 + rank)), added.integers(f"{result}_steps", *strides)
    seen = []
    for tap in np.ndindex(*kernel):
        first = [place * far for place, far in zip(tap, dilations, strict=True)]
        last = [start + (size - 1) * step + 1 for start, size, step in zip(first, made, strides, strict=True)]
        ends = added.integers(f"{result}_first", *first), added.integers(f"{result}_last", *last)
        seen.append(added.op("Slice", source, *ends, axes, steps, out=f"{result}_tap"))
    gathered = added.op("Concat", *seen, out=f"{result}_taps", axis=1)
    flat = weights.reshape(*weights.shape[:2], -1).transpose(0, 2, 1).reshape(len(weights), -1, *[1] * rank)
    folded = added.constant(f"{node.input[1]}_taps", np.ascontiguousarray(flat))
    added.replace("Conv", gathered, folded, *node.input[2:], out=result, kernel_shape=[1] * rank)
