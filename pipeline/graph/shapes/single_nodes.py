"""What single nodes are once the types of their inputs are known."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from onnx import NodeProto, TypeProto, helper

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
    bounds = {attribute.name: attribute.i for attribute in node.attribute}
    return np.array(dims[bounds.get("start", 0) : bounds.get("end", len(dims))], np.int64)


def check_reshape(node: NodeProto, given: Mapping[str, TypeProto], made: Mapping[str, TypeProto]) -> None:
    """ONNX infers a Reshape to its target without counting the elements."""
    if node.op_type != "Reshape" or node.domain not in DEFAULT_DOMAINS or not is_static(made.get(node.output[0])):
        return
    before, after = shape_of(given[node.input[0]]), shape_of(made[node.output[0]])
    if math.prod(before) != math.prod(after):
        raise ShapeError(f"{list(before)} has {math.prod(before)} elements, {list(after)} has {math.prod(after)}")
