"""Floats that say which row of a table is meant.

Keras and converters from it give a network its tokens as floats, which a Cast makes row numbers of.

Where the Cast reads them as they come, it is left in float: HTP casts an input of the model in float32, in models of
float16 and of integers (2.51, emulated, v68 too), and no row number is too large. 16 bits tell 65536 of 70000 rows
apart, and 8 bits 256.

Where something is computed of them before, they end where the table does, whatever the samples show. Of 32 texts the
largest number is that of a token that is common enough to be in them: an encoding that ends there, or a quarter beyond,
makes one token of all those behind it.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnx import NodeProto, TensorProto

from pipeline.graph.ir.attributes import integer
from pipeline.graph.ir.index import GraphIndex, element_type, is_float, is_op
from pipeline.graph.quantization.calibration.ranges import Range
from pipeline.graph.quantization.operand_rules import moves_data

_INTEGERS = (TensorProto.INT32, TensorProto.INT64)
_MOST = 65535
"""The largest row number that 16 bits hold; of more rows some would have to share a step."""
BY_ELEMENT = ("Add", "Clip", "Max", "Min", "Mul", "Sub", "Where")
"""What is done to row numbers on their way: negative ones count from the end, others are bounded."""
_ROUNDS = ("Ceil", "Floor", "Round")


def cast_as_given(index: GraphIndex) -> frozenset[str]:
    """The float inputs of a model that are cast to integers as they are, moved at most; what moves make of them, and
    the integers.
    """
    given = {value.name for value in index.model.graph.input} - index.initializers.keys()
    found = set[str]()
    for node in index.model.graph.node:
        if is_op(node, "Cast") and is_float(index, node.input[0]) and element_type(index, node.output[0]) in _INTEGERS:
            names = [str(node.input[0])]
            while (maker := index.makers.get(names[-1])) is not None and moves_data(index, maker):
                names.append(str(maker.input[0]))
            if names[-1] in given:
                found.update(names, node.output)
    return frozenset(found)


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
        elif node is not None and is_op(node, *BY_ELEMENT):
            pending += map(str, node.input[1:] if is_op(node, "Where") else node.input)
