"""Pools over padded, dilated or three-dimensional windows.

Figures are of QNN EP 2.7 and HTP 2.51, emulated. Results keep their names.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pipeline.graph.ir.pool_axes import PoolAxis, pool_axes
from pipeline.graph.ir.rules import GraphValue, Node, lower, op


@lower("MaxPool")
def pool_volumes(n: Node) -> GraphValue | None:
    """Pool a volume over planes, and the result over depth; QNN leaves a MaxPool over three axes to the CPU.

    Left alone: places of the largest (a second output), and `auto_pad`.
    """
    if len(n[0].shape) != 5 or len(n.proto.output) > 1 or not n.pads_are_given:
        return None
    (batch, channels, depth, *plane), given = n[0].shape, n.attributes
    kernel, pads, ceil = given["kernel_shape"], given.get("pads", [0] * 6), given.get("ceil_mode", 0)
    strides, dilations = (given.get(name, [1, 1, 1]) for name in ("strides", "dilations"))
    planes = op.MaxPool(
        n[0].reshape(batch, channels * depth, *plane), name=n.name, kernel_shape=kernel[1:], strides=strides[1:],
        dilations=dilations[1:], pads=[*pads[1:3], *pads[4:]], ceil_mode=ceil,
    )  # fmt: skip
    deep = op.MaxPool(
        planes.reshape(batch, channels, depth, math.prod(planes.shape[2:])), kernel_shape=[kernel[0], 1],
        strides=[strides[0], 1], dilations=[dilations[0], 1], pads=[pads[0], 0, pads[3], 0], ceil_mode=ceil,
    )  # fmt: skip
    return deep.reshape(*n.y.shape)


@lower("AveragePool")
def convolve_averages(n: Node) -> GraphValue | None:
    """``AveragePool -> Conv * (elements of a window / those that count)`` over padded or dilated windows.

    Without padding HTP is right. With it, the result is 0 or a part of the mean: padding on one side; a window over the
    end; counted padding, in 5 dims, before it, and where the stride is as wide as the kernel. Which ones differs
    between float16 and integers; a padding of 1 around a kernel of 3, as in Inception, is off by 1 % in float16. A Pad
    before it is merged with the pool, and no better. QNN leaves dilations to the CPU.
    """
    if not n[0].is_f32:
        return None
    given = n.attributes
    axes = pool_axes(given, n[0].shape[2:], n.y.shape[2:])
    if not any(axis.before or axis.beyond or axis.dilation > 1 for axis in axes):
        return None
    kernel, channels = [axis.kernel for axis in axes], n[0].shape[1]
    weights = np.full((channels, 1, *kernel), 1 / math.prod(kernel), np.float32)
    means = op.Conv(
        n[0], weights, group=channels, kernel_shape=kernel, strides=[axis.stride for axis in axes],
        dilations=[axis.dilation for axis in axes],
        pads=[axis.before for axis in axes] + [axis.beyond for axis in axes],
    )  # fmt: skip
    shares = [axis.kernel / axis.counts(padding=bool(given.get("count_include_pad", 0))) for axis in axes]
    if all((share == 1).all() for share in shares):
        return means
    return op.Mul(means, np.asarray(math.prod(np.ix_(*shares), start=np.ones(())), np.float32)[None, None])


@lower(
    "MaxPool",
    after={
        "pool_volumes": "it leaves planes",
    },
)
def gather_windows(n: Node) -> GraphValue | None:
    """``MaxPool(x) <dilations> -> MaxPool(Gather(x, places))`` with windows side by side along each axis with a
    dilation.

    A place in the padding is replaced by the nearest one of the same window that is not: the largest stays the same, to
    the bit. QNN leaves a MaxPool with dilations to the CPU. Left alone: places of the largest (a second output);
    windows of padding alone; `auto_pad`, which ONNX Runtime makes as if there were no dilations.
    """
    given, x = n.attributes, n[0]
    if len(n.proto.output) > 1 or given.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        return None
    axes = pool_axes(given, x.shape[2:], n.y.shape[2:])
    dilated = [axis.dilation > 1 for axis in axes]
    if not any(dilated) or not all(axis.counts(padding=False).all() for axis in axes):
        return None
    for at, axis in enumerate(axes):
        if dilated[at]:
            x = op.Gather(x, _places(axis), axis=2 + at)
    return op.MaxPool(
        x, kernel_shape=[axis.kernel for axis in axes],
        strides=[axis.kernel if apart else axis.stride for axis, apart in zip(axes, dilated, strict=True)],
        pads=[
            0 if apart else pad
            for pads in ([axis.before for axis in axes], [axis.after for axis in axes])
            for pad, apart in zip(pads, dilated, strict=True)
        ],
        ceil_mode=given.get("ceil_mode", 0),
    )  # fmt: skip


def _places(axis: PoolAxis) -> NDArray[np.int64]:
    """Where the elements of all windows are, one window after the other."""
    places = axis.places
    inside = (places >= 0) & (places < axis.size)
    first = places[np.arange(len(places)), inside.argmax(1)]
    last = places[np.arange(len(places)), places.shape[1] - 1 - inside[:, ::-1].argmax(1)]
    return np.asarray(np.clip(places, first[:, None], last[:, None]).ravel())
