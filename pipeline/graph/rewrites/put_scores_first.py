"""Select attention scores where a mask says so, rather than a filler where it doesn't.

Before, as torch writes ``scores.masked_fill(hidden, filler)``::

    Softmax(Where(hidden, filler, scores))

After::

    Softmax(Where(Not(hidden), scores, filler))

HTP (2.51, all architectures, emulated) takes the first form for a masked softmax of its own when the scores come from a
MatMul, the filler is one number of -30 or less, and there is more than one head. What it then computes is wrong (41 dB
of SQNR become -1.5, with nothing masked at all), and with other sizes or uint8 it ends the process: it reads the mask
beyond its end. The second form is computed as written.

The result keeps its name. Left alone: a filler that is no constant; a Where that something other than Softmax reads.
"""

from __future__ import annotations

from pathlib import Path

from onnx import ModelProto, NodeProto, ValueInfoProto, helper

from pipeline.graph.ir.index import GraphIndex, LazyIndex, is_op, set_nodes


def apply(model: ModelProto, folder: Path) -> int:
    """Turn every Where in front of a Softmax that has its filler first; returns their number."""
    index = LazyIndex(model, folder)
    shown: dict[str, str] = {}
    nodes: list[NodeProto] = []
    turned = 0
    for node in model.graph.node:
        if _has_filler_first(index, node):
            hidden, filler, scores = node.input
            if hidden not in shown:
                shown[hidden] = index.unused(f"{hidden}_not")
                nodes.append(helper.make_node("Not", [hidden], [shown[hidden]], shown[hidden]))
                model.graph.value_info.append(ValueInfoProto(name=shown[hidden], type=index.types[hidden]))
            node.CopyFrom(helper.make_node("Where", [shown[hidden], scores, filler], list(node.output), node.name))
            turned += 1
        nodes.append(node)
    if turned:
        set_nodes(model, nodes)
    return turned


def _has_filler_first(index: GraphIndex, node: NodeProto) -> bool:
    if not is_op(node, "Where") or node.input[0] in index.initializers or node.input[2] in index.initializers:
        return False
    result = node.output[0]
    ends = index.readers.get(result, [])
    return (
        node.input[1] in index.initializers
        and result not in index.outputs
        and bool(ends)
        and all(is_op(reader, "Softmax") for reader in ends)
    )
