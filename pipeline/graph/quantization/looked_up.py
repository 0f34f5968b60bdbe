"""Floats that say which row of a table is meant, and so end where the table does, whatever the samples show.

Keras and converters from it give a network its tokens as floats, which a Cast makes row numbers of. Of 32 texts the
largest number is that of a token that is common enough to be in them: an encoding that ends there, or a quarter beyond,
makes one token of all those behind it.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnx import NodeProto

from pipeline.graph.ir.attributes import integer
from pipeline.graph.ir.index import GraphIndex, is_float, is_op
from pipeline.graph.quantization.operand_rules import moves_data
from pipeline.graph.quantization.ranges import Range

_MOST = 65535
"""The largest row number that 16 bits hold; of more rows some would have to share a step."""
_BY_ELEMENT = ("Add", "Clip", "Max", "Min", "Mul", "Sub", "Where")
"""What is done to row numbers on their way: negative ones count from the end, others are bounded."""
_ROUNDS = ("Ceil", "Floor", "Round")


def looked_up(index: GraphIndex) -> dict[str, Range]:
    """The float values of a graph that are row numbers of constant tables, and the numbers that the tables have."""
    found: dict[str, Range] = {}
    for node in index.model.graph.node:
        last = _last_row(index, node)
        if 0 <= last <= _MOST:
            for name in _floats_behind(index, str(node.input[1])):
                found[name] = found.get(name, Range(0, 0)) | Range(0, last)
    return found


def _last_row(index: GraphIndex, node: NodeProto) -> int:
    """The largest number that a node looks up; -1 of one that looks up nothing, or in what is computed."""
    if not is_op(node, "Gather", "GatherElements") or node.input[0] not in index.initializers:
        return -1
    dims = index.initializers[node.input[0]].dims
    return int(dims[integer(node, "axis", 0)]) - 1 if dims else -1


def _floats_behind(index: GraphIndex, name: str) -> Iterator[str]:
    """The floats that integers are cast from, and what those are moved or rounded from."""
    pending, seen = [name], set[str]()
    while pending:
        each = pending.pop()
        if each in seen or each in index.initializers:
            continue
        seen.add(each)
        node = index.makers.get(each)
        if is_float(index, each):
            yield each
            if node is not None and (moves_data(index, node) or is_op(node, *_ROUNDS)):
                pending.append(str(node.input[0]))
        elif node is not None and (moves_data(index, node) or is_op(node, "Cast")):
            pending.append(str(node.input[0]))
        elif node is not None and is_op(node, *_BY_ELEMENT):
            pending += map(str, node.input[1:] if is_op(node, "Where") else node.input)
