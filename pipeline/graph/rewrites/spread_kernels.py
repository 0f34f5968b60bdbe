"""Write a transposed convolution with dilations as one without, whose kernel has zeros in between.

Before (w float32, constant)::

    ConvTranspose(x, w, b) <dilations = [2, 1]>

After, where every second row of `w'` is one of `w` and the others are zero::

    ConvTranspose(x, w', b)

Nothing is rounded: the same products are added, and zeros. QNN's TransposeConv2d (EP 2.7) has no dilations, and such a
node stays on the CPU, between two partitions. The result keeps its name. Left alone: weights that are computed; kernels
that would have more than 4 million weights.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from pipeline.graph.ir.attributes import integers
from pipeline.graph.ir.index import is_float32, is_op
from pipeline.graph.ir.node_builder import Additions, each_node

_LARGEST = 1 << 22


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace the kernel of a ConvTranspose with dilations."""
    dilations = _dilations(node)
    weights = node.input[1] if dilations else ""
    if weights not in added.index.initializers or not is_float32(added.index, weights):
        return False
    kernel = added.index.constant(weights)
    spread = None if kernel is None else _spread(kernel, dilations)
    if spread is None:
        return False
    node.input[1] = added.constant(f"{weights}_spread", spread)
    _set(node, spread.shape[2:])
    return True


def _dilations(node: NodeProto) -> list[int]:
    """Those of a transposed convolution; none where all are 1."""
    if not is_op(node, "ConvTranspose"):
        return []
    given = integers(node, "dilations")
    return given if any(step != 1 for step in given) else []


def _spread(kernel: NDArray[Any], dilations: list[int]) -> NDArray[Any] | None:
    sizes = [(size - 1) * step + 1 for size, step in zip(kernel.shape[2:], dilations, strict=True)]
    shape = (*kernel.shape[:2], *sizes)
    if math.prod(shape) > _LARGEST:
        return None
    spread = np.zeros(shape, kernel.dtype)
    spread[(slice(None), slice(None), *(slice(None, None, step) for step in dilations))] = kernel
    return spread


def _set(node: NodeProto, kernel: tuple[int, ...]) -> None:
    """The attributes of a node whose kernel has this many places, next to each other."""
    for attribute in node.attribute:
        if attribute.name == "dilations":
            attribute.ints[:] = [1] * len(kernel)
        if attribute.name == "kernel_shape":
            attribute.ints[:] = kernel
