"""Where to end a model that has a part which no chip with fixed shapes can run."""

from __future__ import annotations

from collections.abc import Container, Sequence

from onnx import GraphProto, NodeProto

from pipeline.graph.ir.moves import VIEWS
from pipeline.graph.ir.traverse import reads

_SPELLINGS = frozenset({*VIEWS, "Cast", "Transpose"})
"""Operators whose input says as much as their output."""
_MOST = 8


def ends_before(graph: GraphProto, node: NodeProto, constants: Container[str]) -> Sequence[str]:
    """The values to end a graph at so that `node` and all that needs it is left out; none if nothing would be left.

    They are what the part left out reads of the rest, constants and inputs of the model aside, and outputs that don't
    need `node`.
    """
    lost = set(node.output)
    behind: list[NodeProto] = []
    for each in graph.node:
        if each.output == node.output or not lost.isdisjoint(reads(each)):
            behind.append(each)
            lost.update(each.output)
    makers = {name: each for each in graph.node for name in each.output if name and name not in lost}
    outputs = [value.name for value in graph.output if value.name in makers]
    read = [name for each in behind for name in reads(each) if name in makers and name not in constants]
    found: dict[str, None] = {}
    for name in read:
        while (maker := makers.get(name)) is not None and maker.op_type in _SPELLINGS and maker.input[0] in makers:
            name = maker.input[0]
        if name not in constants:
            found[name] = None
    ends = [*found, *(name for name in outputs if name not in found)]
    return ends if found and len(ends) <= _MOST else ()
