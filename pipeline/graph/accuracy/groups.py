"""Groups of nodes that one precision is chosen for.

A node that only moves values takes the type of what it moves, and so does a bias or a scale that a product is followed
by: between such nodes a conversion would cost more than it could save. What passes between two nodes without an
encoding of its own, as a product that a Relu cuts off, keeps them together too.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from onnx import NodeProto

from pipeline.graph.ir.index import GraphIndex, is_float, is_op
from pipeline.graph.quantization.operand_rules import moves_data

_FOLLOWING = ("Add", "Sub", "Mul", "Div", "Relu", "Clip", "LeakyRelu", "PRelu")


@dataclass(frozen=True)
class Group:
    """Nodes of one precision, by name, in the graph's order."""

    nodes: tuple[str, ...]


def groups(index: GraphIndex, values: Collection[str]) -> list[Group]:
    """The nodes that make or read floats, in groups; `values` are those that have encodings."""
    members: dict[str, list[str]] = {}
    first: dict[str, str] = {}
    for node in index.model.graph.node:
        if not any(is_float(index, name) for name in (*node.input, *node.output)):
            continue
        joined = {first[maker.name]: None for maker in _joined(index, node, values) if maker.name in first}
        head, *others = [*joined, node.name]
        members.setdefault(head, [])
        for other in others:
            members[head] += members.pop(other, [other])
        members[head] += [node.name] if head == node.name else []
        first |= dict.fromkeys(members[head], head)
    place = {node.name: number for number, node in enumerate(index.model.graph.node)}
    ordered = [tuple(sorted(nodes, key=place.__getitem__)) for nodes in members.values()]
    return [Group(nodes) for nodes in sorted(ordered, key=lambda nodes: place[nodes[0]])]


def _joined(index: GraphIndex, node: NodeProto, values: Collection[str]) -> list[NodeProto]:
    """The nodes whose groups another one joins."""
    computed = [name for name in dict.fromkeys(node.input) if name not in index.initializers and is_float(index, name)]
    found = [index.makers[name] for name in computed if name not in values and name in index.makers]
    if len(computed) == 1 and computed[0] in index.makers:
        follows = is_op(node, *_FOLLOWING) and index.sole_reader(computed[0], node.op_type) is not None
        moves = moves_data(index, node) and computed[0] == node.input[0]
        found += [index.makers[computed[0]]] if follows or moves else []
    return found
