"""What a reduction reduces, however its opset spells it."""

from __future__ import annotations

from onnx import ModelProto, NodeProto

from pipeline.graph.ir.attributes import integer, integers
from pipeline.graph.ir.index import GraphIndex, is_op, opset
from pipeline.graph.ir.traverse import input_at


def reduced_axes(index: GraphIndex, node: NodeProto) -> tuple[int, ...] | None:
    """The axes that a Reduce node reduces, ascending, counted from the front; None if computed, or if there are none.

    They are an attribute in the earlier opsets, an input in the later ones (ReduceSum from 13, the others from 18).
    """
    rank = len(index.types[node.input[0]].tensor_type.shape.dim)
    axes = integers(node, "axes")
    if not axes and input_at(node, 1):
        given = index.constant(node.input[1])
        if given is None:
            return None
        axes = [int(axis) for axis in given.ravel()]
    if axes:
        return tuple(sorted(axis % rank for axis in axes))
    return None if integer(node, "noop_with_empty_axes") else tuple(range(rank))


def keeps_axes(node: NodeProto) -> bool:
    """Whether a Reduce node leaves the axes it reduces in place, one long."""
    return bool(integer(node, "keepdims", 1))


def axes_are_an_input(model: ModelProto, node: NodeProto) -> bool:
    """Whether a Reduce node of this model takes its axes as an input, whether it has any or not."""
    return opset(model) >= (13 if is_op(node, "ReduceSum") else 18)
