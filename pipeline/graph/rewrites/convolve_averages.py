"""Compute averages over padded or dilated windows by a convolution.

Before (x float32; dilations; padding given or by auto_pad, or a last window that ceil_mode lets reach over the end)::

    AveragePool(x) <pads, count_include_pad, auto_pad, ceil_mode, dilations>

After, with weights that are all the inverse of a window's size::

    Mul(Conv(x, weights) <group = channels, pads>, elements of a window / those that count)

without the Mul where all of them count. HTP (2.51, emulated) is right without padding. With it, what comes out is 0 or
a part of the mean: padding on one side; a window over the end; counted padding, in 5 dims, in front of it, and where
the stride is as wide as the kernel. Which ones differs between float16 and integers; a padding of 1 around a kernel of
3, as in Inception, is off by 1 % in float16. A Pad in front is merged with the pool, and no better. QNN (EP 2.7) leaves
dilations to the CPU.

The result keeps its name. Left alone: pools without padding or dilations, and types other than float32.
"""

from __future__ import annotations

import math

import numpy as np
from onnx import NodeProto, TensorProto, helper

from pipeline.graph.ir.attributes import settings
from pipeline.graph.ir.index import is_float32, is_op
from pipeline.graph.ir.node_builder import Additions, each_node
from pipeline.graph.ir.pool_axes import PoolAxis, pool_axes


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace an AveragePool over padded or dilated windows."""
    if not is_op(node, "AveragePool") or not is_float32(added.index, node.input[0]):
        return False
    given = settings(node)
    axes = pool_axes(given, added.shape(node.input[0])[2:], added.shape(node.output[0])[2:])
    if not any(axis.before or axis.beyond or axis.dilation > 1 for axis in axes):
        return False
    _replace(added, node, axes, bool(given.get("count_include_pad", 0)))
    return True


def _replace(added: Additions, node: NodeProto, axes: list[PoolAxis], counted: bool) -> None:
    result, kernel = node.output[0], [axis.kernel for axis in axes]
    channels = added.shape(node.input[0])[1]
    weights = np.full((channels, 1, *kernel), 1 / math.prod(kernel), np.float32)
    operands = node.input[0], added.constant(f"{result}_weights", weights)
    shares = [axis.kernel / axis.counts(padding=counted) for axis in axes]
    whole = all((share == 1).all() for share in shares)
    means = result if whole else added.value(f"{result}_means", TensorProto.FLOAT, added.shape(result))
    added.nodes.append(
        helper.make_node(
            "Conv", operands, [means], f"{result}_convolved", group=channels, kernel_shape=kernel,
            strides=[axis.stride for axis in axes], dilations=[axis.dilation for axis in axes],
            pads=[axis.before for axis in axes] + [axis.beyond for axis in axes],
        )
    )  # fmt: skip
    if not whole:
        grid = np.asarray(math.prod(np.ix_(*shares), start=np.ones(())), np.float32)
        added.replace("Mul", means, added.constant(f"{result}_shares", grid[None, None]), out=result)
