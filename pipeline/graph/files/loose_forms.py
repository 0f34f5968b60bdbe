"""Forms that onnxruntime reads and ONNX's checker does not accept, written as the checker wants them."""

from __future__ import annotations

from onnx import ModelProto

from pipeline.graph.ir.index import in_order, set_nodes
from pipeline.graph.ir.traverse import DEFAULT_DOMAINS

_INITIALIZERS_ALONE = 4
"""The first version of ONNX's format whose initializers need not be inputs as well."""


def tighten(model: ModelProto) -> None:
    """Give a nameless graph a name, put nodes behind what they read, and the like. What is computed stays the same.

    Files of converters and of tools that edit graphs have such forms, in the main graph: inside of branches onnxruntime
    refuses them as well. A graph with a cycle is left to the checker.
    """
    model.ir_version = max(model.ir_version, _INITIALIZERS_ALONE)
    model.ClearField("metadata_props")  # may have a key twice; nothing reads them
    graph = model.graph
    graph.name = graph.name or "graph"
    for node in graph.node:
        if node.domain in DEFAULT_DOMAINS:
            node.ClearField("domain")
    nodes = list(graph.node)
    order = in_order(nodes)
    if order is not None and order is not nodes:
        set_nodes(model, order)
