"""Operators that onnxruntime's optimizer puts into ONNX's own domain, where ONNX has none or has them later only.

LayerNormalization came to ONNX with opset 17, and onnxruntime writes it at any; SimplifiedLayerNormalization is its
own. ONNX's checker and converter know neither, so they are shown to them as operators of ``com.microsoft``.
"""

from __future__ import annotations

from collections.abc import Iterable

from onnx import ModelProto, NodeProto

from pipeline.graph.ir.index import CONTRIB_DOMAIN, opset
from pipeline.graph.ir.traverse import DEFAULT_DOMAINS, all_nodes

_NEVER = 1 << 30
_SINCE = {"LayerNormalization": 17, "SimplifiedLayerNormalization": _NEVER}
"""The opset that ONNX has each from on."""


_BACK = frozenset({*_SINCE, "Resize"})
"""What is ever set aside; ``com.microsoft`` has no operators of these names."""


def is_of_onnxruntime(node: NodeProto) -> bool:
    """Whether an operator of ONNX's own domain is onnxruntime's alone, at every opset the same."""
    return node.domain in DEFAULT_DOMAINS and _SINCE.get(node.op_type) == _NEVER


def set_runtime_operators_aside(model: ModelProto) -> list[NodeProto]:
    """Move operators that ONNX has not at the model's opset to ``com.microsoft``; returns them."""
    version = opset(model) or 1
    found = [
        node
        for node in all_nodes(model.graph)
        if node.domain in DEFAULT_DOMAINS and node.op_type in _SINCE and version < _SINCE[node.op_type]
    ]
    set_aside(model, found)
    return found


def set_aside(model: ModelProto, nodes: Iterable[NodeProto]) -> None:
    """Move nodes of `model` to ``com.microsoft``, which it imports from then on."""
    for node in nodes:
        node.domain = CONTRIB_DOMAIN
    if not any(entry.domain == CONTRIB_DOMAIN for entry in model.opset_import):
        model.opset_import.add(domain=CONTRIB_DOMAIN, version=1)


def bring_back(model: ModelProto) -> None:
    """Move what was set aside back into ONNX's own domain."""
    for node in all_nodes(model.graph):
        if node.domain == CONTRIB_DOMAIN and node.op_type in _BACK:
            node.ClearField("domain")
