"""What a reduction reduces, however its opset spells it."""

from __future__ import annotations

from onnx import ModelProto, NodeProto

from pipeline.graph.ir.index import GraphIndex, is_op, opset


def reduced_axes(index: GraphIndex, node: NodeProto) -> tuple[int, ...] | None:
    """The axes that a Reduce node reduces, ascending, counted from the front; None if computed, or if there are none.

    They are an attribute in the earlier opsets, an input in the later ones (ReduceSum from 13, the others from 18).
    """
    attributes = {attribute.name: attribute for attribute in node.attribute}
    rank = len(index.types[node.input[0]].tensor_type.shape.dim)
    axes: list[int] = []
    if "axes" in attributes:
        axes = list(attributes["axes"].ints)
    elif len(node.input) > 1 and node.input[1]:
        given = index.constant(node.input[1])
        if given is None:
            return None
        axes = [int(axis) for axis in given.ravel()]
    if axes:
        return tuple(sorted(axis % rank for axis in axes))
    does_nothing = "noop_with_empty_axes" in attributes and attributes["noop_with_empty_axes"].i
    return None if does_nothing else tuple(range(rank))


def keeps_axes(node: NodeProto) -> bool:
    """Whether a Reduce node leaves the axes it reduces in place, one long."""
    return all(attribute.i for attribute in node.attribute if attribute.name == "keepdims")


def axes_are_an_input(model: ModelProto, node: NodeProto) -> bool:
    """Whether a Reduce node of this model takes its axes as an input, whether it has any or not."""
    return opset(model) >= (13 if is_op(node, "ReduceSum") else 18)
