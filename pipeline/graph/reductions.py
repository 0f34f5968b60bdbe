"""What a reduction reduces, however its opset spells it."""

from __future__ import annotations

from onnx import NodeProto

from pipeline.graph.index import GraphIndex
from pipeline.graph.inference import shape_of


def reduced_axes(index: GraphIndex, node: NodeProto) -> tuple[int, ...] | None:
    """The axes that a Reduce node makes one long, ascending, counted from the front.

    None if it drops them, if they are computed, or if it reduces nothing. They are an attribute up to opset 17, an
    input from 18 on.
    """
    attributes = {attribute.name: attribute for attribute in node.attribute}
    if "keepdims" in attributes and not attributes["keepdims"].i:
        return None
    rank = len(shape_of(index.types[node.input[0]]))
    if "axes" in attributes:
        axes = list(attributes["axes"].ints)
    elif len(node.input) > 1 and node.input[1]:
        given = index.constant(node.input[1])
        if given is None:
            return None
        axes = [int(axis) for axis in given.ravel()]
    else:
        axes = []
    if not axes:
        does_nothing = "noop_with_empty_axes" in attributes and attributes["noop_with_empty_axes"].i
        return None if does_nothing else tuple(range(rank))
    return tuple(sorted(axis % rank for axis in axes))
