"""Compute what goes over three axes of a volume over two of them, and then over the third.

Before, with x of [n, c, depth, height, width]::

    MaxPool(x, kernel_shape=[a, b, c])

After::

    planes = MaxPool(Reshape(x, [n, c * depth, height, width]), kernel_shape=[b, c])
    MaxPool(Reshape(planes, [n, c, depth, height' * width']), kernel_shape=[a, 1])

and the same with a linear Resize and its factors or sizes. Both are the same numbers: the largest of the largest, and
weights that are products.

QNN (EP 2.7) leaves a MaxPool over three axes to the CPU. A linear Resize over three it takes, and computes other
numbers (-2 dB on the emulator of 2.51).

The result keeps its name. Left alone: places of the largest (a second output), `auto_pad`, a Resize that changes the
batch or the channels, crops, keeps ratios or smooths, and computed factors.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, helper

from pipeline.graph.ir.index import GraphIndex, is_op, substitute
from pipeline.graph.ir.node_builder import Additions

NAME = "split_volumes"

_DIMS = 5
_TAKEN = ("mode", "coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside", "nearest_mode")


def apply(model: ModelProto, folder: Path) -> int:
    """Split every such node; returns their number."""
    index = GraphIndex(model, folder)
    added = Additions(index)
    found = [node for node in model.graph.node if _split(index, added, node)]
    if found:
        substitute(model, found, added.finish())
    return len(found)


def _split(index: GraphIndex, added: Additions, node: NodeProto) -> bool:
    if not is_op(node, "MaxPool", "Resize") or len(added.shape(node.input[0])) != _DIMS:
        return False
    given = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    return _pool(added, node, given) if is_op(node, "MaxPool") else _resize(index, added, node, given)


def _pool(added: Additions, node: NodeProto, given: Mapping[str, Any]) -> bool:
    if len(node.output) > 1 or given.get("auto_pad", b"NOTSET") != b"NOTSET":
        return False
    kernel = given["kernel_shape"]
    strides, dilations = (given.get(name, [1, 1, 1]) for name in ("strides", "dilations"))
    pads, ceil = given.get("pads", [0] * 6), given.get("ceil_mode", 0)
    _, _, depth, height, width = (*added.shape(node.input[0]),)
    made = _in_planes(added, node, (depth, height, width))
    planes = added.op(
        "MaxPool", made, out=f"{node.output[0]}_planes", name=node.name, kernel_shape=kernel[1:], strides=strides[1:],
        dilations=dilations[1:], pads=[*pads[1:3], *pads[4:]], ceil_mode=ceil,
    )  # fmt: skip
    deep = added.op(
        "MaxPool", _in_depth(added, node, planes), out=f"{node.output[0]}_depth", kernel_shape=[kernel[0], 1],
        strides=[strides[0], 1], dilations=[dilations[0], 1], pads=[pads[0], 0, pads[3], 0], ceil_mode=ceil,
    )  # fmt: skip
    _finish(added, node, deep)
    return True


def _resize(index: GraphIndex, added: Additions, node: NodeProto, given: Mapping[str, Any]) -> bool:
    if given.get("mode") != b"linear" or not {*given} <= {*_TAKEN} or (len(node.input) > 1 and node.input[1]):
        return False
    before, after = added.shape(node.input[0]), added.shape(node.output[0])
    place = next((place for place in (2, 3) if place < len(node.input) and node.input[place]), None)
    how = index.constant(node.input[place]) if place is not None else None
    if place is None or how is None or how.size != _DIMS or before[:2] != after[:2]:
        return False
    made = _in_planes(added, node, before[2:])
    planes = _resized(added, node, made, place, how[3:], given, "planes")
    deep = _in_depth(added, node, planes)
    width = np.array(1 if place == 2 else added.shape(deep)[-1], how.dtype)
    _finish(added, node, _resized(added, node, deep, place, np.array([how[2], width]), given, "depth"))
    return True


def _resized(
    added: Additions, node: NodeProto, given: str, place: int, how: Any, attributes: Mapping[str, Any], part: str
) -> str:
    kept = [1, 1] if place == 2 else added.shape(given)[:2]
    told = added.constant(f"{node.output[0]}_{part}_to", np.array([*kept, *how], how.dtype))
    empty = ("",) * (place - 1)
    return added.op("Resize", given, *empty, told, out=f"{node.output[0]}_{part}", **attributes)


def _in_planes(added: Additions, node: NodeProto, sizes: tuple[int, ...]) -> str:
    batch, channels = added.shape(node.input[0])[:2]
    dims = added.integers(f"{node.output[0]}_planes_dims", batch, channels * sizes[0], *sizes[1:])
    return added.op("Reshape", node.input[0], dims, out=f"{node.output[0]}_in_planes")


def _in_depth(added: Additions, node: NodeProto, planes: str) -> str:
    batch, channels, depth = added.shape(node.input[0])[:3]
    height, width = added.shape(planes)[2:]
    dims = added.integers(f"{node.output[0]}_depth_dims", batch, channels, depth, height * width)
    return added.op("Reshape", planes, dims, out=f"{node.output[0]}_in_depth")


def _finish(added: Additions, node: NodeProto, made: str) -> None:
    result = node.output[0]
    added.replace("Reshape", made, added.integers(f"{result}_dims", *added.shape(result)), out=result)
