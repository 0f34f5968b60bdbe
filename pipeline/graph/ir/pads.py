"""How a Pad fills what it adds."""

from __future__ import annotations

from onnx import NodeProto

from pipeline.graph.ir.index import is_op


def pad_mode(node: NodeProto) -> str:
    """The mode of a Pad, such as ``edge``; empty for another operator."""
    if not is_op(node, "Pad"):
        return ""
    return next((each.s.decode("utf-8", "replace") for each in node.attribute if each.name == "mode"), "constant")
