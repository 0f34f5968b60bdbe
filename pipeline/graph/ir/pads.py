"""How a Pad fills what it adds."""

from __future__ import annotations

from onnx import NodeProto

from pipeline.graph.ir.attributes import text
from pipeline.graph.ir.index import is_op


def pad_mode(node: NodeProto) -> str:
    """The mode of a Pad, such as ``edge``; empty for another operator."""
    if not is_op(node, "Pad"):
        return ""
    return text(node, "mode", "constant")
