"""What single nodes are once the types of their inputs are known."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from onnx import NodeProto, TypeProto, helper

from pipeline.graph.ir.attributes import integer, settings
from pipeline.graph.ir.inference import ShapeError, is_static, shape_of
from pipeline.graph.ir.traverse import DEFAULT_DOMAINS


def plain_cast(node: NodeProto, to: int) -> NodeProto:
    """The Cast that a CastLike is once the type of its second input is known."""
    cast = helper.make_node("Cast", node.input[:1], node.output, name=node.name, to=to)
    cast.attribute.extend(node.attribute)
    return cast


def shape_value(node: NodeProto, dims: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """What a Shape or Size makes of a value of these dims."""
    if node.op_type == "Size":
        return np.array(math.prod(dims), np.int64)
    return np.array(dims[integer(node, "start") : integer(node, "end", len(dims))], np.int64)


def check_reshape(node: NodeProto, given: Mapping[str, TypeProto], made: Mapping[str, TypeProto]) -> None:
    """ONNX infers a Reshape to its target without counting the elements."""
    if node.op_type != "Reshape" or node.domain not in DEFAULT_DOMAINS or not is_static(made.get(node.output[0])):
        return
    before, after = shape_of(given[node.input[0]]), shape_of(made[node.output[0]])
    if math.prod(before) != math.prod(after):
        raise ShapeError(f"{list(before)} has {math.prod(before)} elements, {list(after)} has {math.prod(after)}")


def end_in_the_input(node: NodeProto, given: Mapping[str, TypeProto]) -> None:
    """Let a pool with ceil_mode have no window that begins in the padding behind its input, which it leaves out.

    ONNX counts such a window before opset 22, where onnxruntime computes none. What no window reaches of the padding is
    taken away, or the mode, where all sizes are those of the other one. Left alone: auto_pad.
    """
    attributes = settings(node)
    pools = node.op_type in ("MaxPool", "AveragePool", "LpPool") and node.domain in DEFAULT_DOMAINS
    if not pools or not attributes.get("ceil_mode") or attributes.get("auto_pad", b"NOTSET") != b"NOTSET":
        return
    sizes, kernel = shape_of(given[node.input[0]])[2:], attributes.get("kernel_shape", [])
    count = len(kernel)
    strides, dilations = (attributes.get(name, [1] * count) for name in ("strides", "dilations"))
    padding = attributes.get("pads", [0] * (2 * count))
    if not len(sizes) == count == len(strides) == len(dilations) == len(padding) // 2 or min(strides, default=0) < 1:
        return  # refused where the shape of its result is inferred
    pads, as_floor = list(padding), True
    for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        reach, end = dilations[axis] * (kernel[axis] - 1) + 1, size + padding[axis]
        beyond = end + padding[count + axis] - reach
        windows = -(-beyond // stride)  # those before the last that ONNX counts
        if windows * stride >= end:
            pads[count + axis] = (windows - 1) * stride + reach - end
        elif beyond % stride:
            as_floor = False
    if pads == padding or (min(pads) < 0 and not as_floor):
        return
    changed = "ceil_mode" if as_floor else "pads"
    for attribute in [each for each in node.attribute if each.name == changed]:
        node.attribute.remove(attribute)
    if not as_floor:
        node.attribute.append(helper.make_attribute("pads", pads))
