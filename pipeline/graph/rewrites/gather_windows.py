"""Look the windows of a dilated MaxPool up, so that their elements lie side by side.

Before::

    MaxPool(x) <kernel_shape = [3, 2], dilations = [2, 1], strides, pads>

After, for each axis with a dilation (here the first), where the windows' places are constants::

    MaxPool(Gather(x, places), kernel_shape = [3, 2], strides = [3, ...], no pads along the first)

A place in the padding is replaced by the nearest one of the same window that is not: the largest stays the same, to the
bit. QNN (EP 2.7) leaves a MaxPool with dilations to the CPU.

The result keeps its name. Left alone: places of the largest (a second output); windows of padding alone; padding as
wide as windows need (`auto_pad`), which ONNX Runtime makes as if there were no dilations.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from pipeline.graph.ir.attributes import settings
from pipeline.graph.ir.index import is_op
from pipeline.graph.ir.node_builder import Additions, each_node
from pipeline.graph.ir.pool_axes import PoolAxis, pool_axes


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace a MaxPool with dilations by one of windows that are looked up."""
    if not is_op(node, "MaxPool") or len(node.output) > 1:
        return False
    given, result = settings(node), node.output[0]
    if given.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        return False
    axes = pool_axes(given, added.shape(node.input[0])[2:], added.shape(result)[2:])
    dilated = [axis.dilation > 1 for axis in axes]
    if not any(dilated) or not all(axis.counts(padding=False).all() for axis in axes):
        return False
    source = node.input[0]
    for at, axis in enumerate(axes):
        if dilated[at]:
            places = added.constant(f"{result}_places", _places(axis))
            source = added.op("Gather", source, places, out=f"{result}_windows", axis=2 + at)
    added.replace(
        "MaxPool", source, out=result, kernel_shape=[axis.kernel for axis in axes],
        strides=[axis.kernel if is_dilated else axis.stride for axis, is_dilated in zip(axes, dilated, strict=True)],
        pads=[*_pads([axis.before for axis in axes], dilated), *_pads([axis.after for axis in axes], dilated)],
        ceil_mode=given.get("ceil_mode", 0),
    )  # fmt: skip
    return True


def _places(axis: PoolAxis) -> NDArray[np.int64]:
    """Where the elements of all windows are, one window behind the other."""
    places = axis.places
    inside = (places >= 0) & (places < axis.size)
    first = places[np.arange(len(places)), inside.argmax(1)]
    last = places[np.arange(len(places)), places.shape[1] - 1 - inside[:, ::-1].argmax(1)]
    return np.asarray(np.clip(places, first[:, None], last[:, None]).ravel())


def _pads(pads: list[int], dilated: list[bool]) -> list[int]:
    return [0 if is_dilated else pad for pad, is_dilated in zip(pads, dilated, strict=True)]
