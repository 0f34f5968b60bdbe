"""Pool a volume over two of its axes, and then over the third.

Before, with x of [n, c, depth, height, width]::

    MaxPool(x, kernel_shape=[a, b, c])

After::

    planes = MaxPool(Reshape(x, [n, c * depth, height, width]), kernel_shape=[b, c])
    MaxPool(Reshape(planes, [n, c, depth, height' * width']), kernel_shape=[a, 1])

The largest of the largest is the largest of all. QNN (EP 2.7) leaves a MaxPool over three axes to the CPU.

The result keeps its name. Left alone: places of the largest (a second output), and `auto_pad`.
"""

from __future__ import annotations

from onnx import NodeProto

from pipeline.graph.ir.attributes import settings
from pipeline.graph.ir.index import is_op
from pipeline.graph.ir.node_builder import Additions, each_node

_DIMS = 5


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Split a MaxPool over volumes."""
    if not is_op(node, "MaxPool") or len(added.shape(node.input[0])) != _DIMS or len(node.output) > 1:
        return False
    given = settings(node)
    if given.get("auto_pad", b"NOTSET") != b"NOTSET":
        return False
    kernel = given["kernel_shape"]
    strides, dilations = (given.get(name, [1, 1, 1]) for name in ("strides", "dilations"))
    pads, ceil = given.get("pads", [0] * 6), given.get("ceil_mode", 0)
    planes = added.op(
        "MaxPool", _in_planes(added, node), out=f"{node.output[0]}_planes", name=node.name, kernel_shape=kernel[1:],
        strides=strides[1:], dilations=dilations[1:], pads=[*pads[1:3], *pads[4:]], ceil_mode=ceil,
    )  # fmt: skip
    deep = added.op(
        "MaxPool", _in_depth(added, node, planes), out=f"{node.output[0]}_depth", kernel_shape=[kernel[0], 1],
        strides=[strides[0], 1], dilations=[dilations[0], 1], pads=[pads[0], 0, pads[3], 0], ceil_mode=ceil,
    )  # fmt: skip
    result = node.output[0]
    added.replace("Reshape", deep, added.integers(f"{result}_dims", *added.shape(result)), out=result)
    return True


def _in_planes(added: Additions, node: NodeProto) -> str:
    batch, channels, depth, height, width = added.shape(node.input[0])
    dims = added.integers(f"{node.output[0]}_planes_dims", batch, channels * depth, height, width)
    return added.op("Reshape", node.input[0], dims, out=f"{node.output[0]}_in_planes")


def _in_depth(added: Additions, node: NodeProto, planes: str) -> str:
    batch, channels, depth = added.shape(node.input[0])[:3]
    height, width = added.shape(planes)[2:]
    dims = added.integers(f"{node.output[0]}_depth_dims", batch, channels, depth, height * width)
    return added.op("Reshape", planes, dims, out=f"{node.output[0]}_in_depth")
