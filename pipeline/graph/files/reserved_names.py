"""Names that the quantizer gives: values and nodes of a model that end like them get an underscore more.

Behind value ``x`` stand ``x_scale``, ``x_zero_point``, ``x_quantized``, ``x_QuantizeLinear`` and so on. Files that were
quantized before have the very same names, and exporters call the factor of a norm ``bn_scale``.
"""

from __future__ import annotations

import re

from onnx import GraphProto

from pipeline.graph.files.inlining import rename
from pipeline.graph.ir.traverse import all_graphs, unused

_RESERVED = re.compile(r"_(scale|zero_point|quantized|(Q|Deq)uantizeLinear(_Input|_Output)?)$")


def free_reserved_names(graph: GraphProto) -> int:
    """Rename values and nodes of a graph that are named like the quantizer's, in place; returns how many values.

    Inputs and outputs keep their names: applications know them.
    """
    kept = {value.name for value in (*graph.input, *graph.output)}
    made = [name for node in graph.node for name in node.output] + [tensor.name for tensor in graph.initializer]
    taken = {*kept, *made}
    renamed: dict[str, str] = {}
    for name in made:
        if name not in kept and _RESERVED.search(name):
            renamed[name] = unused(f"{name}_", taken)
            taken.add(renamed[name])
    nodes = {node.name for inner in all_graphs(graph) for node in inner.node}
    for inner in all_graphs(graph):
        for node in inner.node:
            if _RESERVED.search(node.name):
                node.name = unused(f"{node.name}_", nodes)
                nodes.add(node.name)
    if renamed:
        rename(graph, renamed)
        for tensor in graph.initializer:
            tensor.name = renamed.get(tensor.name, tensor.name)
    return len(renamed)
