"""Where to end a model before a part that the chip can't run, or runs wrongly, and where to begin behind it."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence

from onnx import GraphProto, NodeProto

from pipeline.graph.ir.index import WHOLE, GraphIndex, element_type
from pipeline.graph.ir.moves import VIEWS
from pipeline.graph.ir.traverse import reads

_SPELLINGS = frozenset({*VIEWS, "Cast", "Transpose"})
"""Operators whose input says as much as their output."""
_MOST = 8


def ends_before(graph: GraphProto, nodes: NodeProto | Sequence[NodeProto], constants: Container[str]) -> Sequence[str]:
    """The values to end a graph at so that `nodes` and all that needs them is left out; none if nothing would be left.

    They are what the part left out reads of the rest, constants and inputs of the model aside, and outputs that don't
    need `nodes`.
    """
    behind = _behind(graph, [nodes] if isinstance(nodes, NodeProto) else nodes)
    makers = _makers(graph, behind)
    outputs = [value.name for value in graph.output if value.name in makers]
    ends = (*dict.fromkeys((*_taken(behind, makers, constants), *outputs)),)
    return ends if len(ends) <= _MOST else ()


def begins_behind(graph: GraphProto, node: NodeProto, constants: Container[str]) -> Sequence[str]:
    """The values to begin at so that a node is left out, and what it and nothing else behind it needs; none if that is
    too much.

    They are what it makes, and what the part behind it reads of the part in front.
    """
    behind = _behind(graph, [node])
    rest = [each for each in behind if tuple(each.output) != tuple(node.output)]
    begins = (*dict.fromkeys((*filter(None, node.output), *_taken(rest, _makers(graph, behind), constants))),)
    return begins if rest and len(begins) <= _MOST else ()


def _behind(graph: GraphProto, nodes: Sequence[NodeProto]) -> Sequence[NodeProto]:
    """These nodes, and all that need them."""
    left_out, lost = {tuple(node.output) for node in nodes}, {name for node in nodes for name in node.output}
    behind: list[NodeProto] = []
    for each in graph.node:
        if tuple(each.output) in left_out or not lost.isdisjoint(reads(each)):
            behind.append(each)
            lost.update(each.output)
    return behind


def _makers(graph: GraphProto, behind: Sequence[NodeProto]) -> Mapping[str, NodeProto]:
    """The nodes in front, by what they make."""
    lost = {name for node in behind for name in node.output}
    return {name: each for each in graph.node for name in each.output if name and name not in lost}


def _taken(behind: Sequence[NodeProto], makers: Mapping[str, NodeProto], constants: Container[str]) -> Iterator[str]:
    """What nodes read of the values in front of them, constants and inputs of the model aside."""
    for name in (name for each in behind for name in reads(each)):
        if name not in makers or name in constants:
            continue
        while (maker := makers.get(name)) is not None and maker.op_type in _SPELLINGS and maker.input[0] in makers:
            name = maker.input[0]
        if name not in constants:
            yield name


def handed_on(index: GraphIndex, values: Sequence[str]) -> Sequence[str]:
    """What a part that computes whole numbers, `values` among them, hands to the rest; none if that is too much.

    An application that computes these may leave that part out of the model.
    """
    waiting, seen, found = [*values], {*values}, dict[str, None]()
    while waiting:
        name = waiting.pop(0)
        behind = [node for node in index.readers.get(name, []) if all(_is_whole(index, made) for made in node.output)]
        if len(behind) < len(index.readers.get(name, [])):
            found[name] = None
        fresh = [made for node in behind for made in node.output if made and made not in seen]
        seen.update(fresh)
        waiting += fresh
    return (*found,) if len(found) <= _MOST else ()


def _is_whole(index: GraphIndex, name: str) -> bool:
    return not name or element_type(index, name) in WHOLE
