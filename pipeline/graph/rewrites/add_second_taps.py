"""Give the kernels of a depthwise convolution a second tap of zero, where they have a single one.

Before (w float32, constant, [channels, 1, 1, 1])::

    Conv(x, w, b) <group = channels>

After, where `w'` is [channels, 1, 2, 1] and its second tap is zero::

    Conv(x, w', b) <group = channels, pads = [0, 0, 1, 0]>

Nothing is rounded: what is added is zero. Nets that train branches beside each other (MobileOne, FastViT) have such
products by one number a channel. With 16 bit activations and 8 bit weights QNN (EP 2.7) does not compile one whose
weights differ by more than about 256 times (64 channels of 0.001 to 2), and of 384 channels its compiler's process ends
(0.1 to 2). In float16, with 8 bit activations, and with two taps it does. The result keeps its name. Left alone:
computed weights, and what is right: strides, padding, several outputs a channel, and rows.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, helper

from pipeline.graph.ir.attributes import integer, integers, settings, text
from pipeline.graph.ir.index import is_float32, is_op
from pipeline.graph.ir.node_builder import Additions, each_node


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Widen the kernels of a Conv of one tap a channel."""
    weights = node.input[1] if is_op(node, "Conv") else ""
    if weights not in added.index.initializers or not is_float32(added.index, weights):
        return False
    kernel = added.index.constant(weights)
    if kernel is None or kernel.shape[1:] != (1, 1, 1) or not 1 < len(kernel) == integer(node, "group", 1):
        return False
    if {*integers(node, "strides", [1])} != {1} or any(integers(node, "pads")):
        return False
    if text(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return False
    node.input[1] = added.constant(f"{weights}_two_taps", np.concatenate([kernel, np.zeros_like(kernel)], axis=2))
    made = settings(node) | {"kernel_shape": [2, 1], "pads": [0, 0, 1, 0]}
    del node.attribute[:]
    node.attribute.extend(
        helper.make_attribute(name, value) for name, value in made.items() if name not in ("auto_pad", "dilations")
    )
    return True
