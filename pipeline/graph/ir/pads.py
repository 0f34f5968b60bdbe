"""How much a Pad adds, and how it fills that."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto

from pipeline.graph.ir.attributes import text
from pipeline.graph.ir.index import GraphIndex, is_op
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.traverse import input_at


def pad_mode(node: NodeProto) -> str:
    """The mode of a Pad, such as ``edge``; empty for another operator."""
    if not is_op(node, "Pad"):
        return ""
    return text(node, "mode", "constant")


def pad_widths(index: GraphIndex, node: NodeProto) -> dict[int, tuple[int, int]] | None:
    """How many elements a Pad adds in front and at the end of each axis that it names; None if it computes them."""
    rank = len(shape_of(index.types[node.input[0]]))
    widths = index.constant(node.input[1])
    axes = index.constant(node.input[3]) if input_at(node, 3) else np.arange(rank)
    if widths is None or axes is None:
        return None
    count = len(axes)
    return {int(axis) % rank: (int(widths[at]), int(widths[at + count])) for at, axis in enumerate(axes)}
