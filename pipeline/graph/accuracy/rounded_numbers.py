"""Integer outputs that are numbers: floats that a last Cast or QuantizeLinear rounds, as the pixels of a picture are.

One that is off by a step is nearly right, while a class that is off by one is another class. So what follows from a
choice, a comparison or integers of the graph's inputs is compared for equality, and only this is not.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnx import NodeProto

from pipeline.graph.ir.index import GraphIndex, is_float, is_op
from pipeline.graph.ir.moves import KEEPING, MOVES

_ROUNDS = ("Ceil", "Floor", "Round")
_ARITHMETIC = ("Abs", "Add", "Clip", "Concat", "Div", "Max", "Min", "Mul", "Neg", "Sub", "Sum")
_DECIDES = ("ArgMax", "ArgMin", "NonZero", "OneHot", "Sign", "TopK", "Unique")
"""Operators that give floats or integers which count or name something."""
_INTEGERS = frozenset((2, 3, 4, 5, 6, 7, 12, 13))
"""TensorProto.DataType of uint8, int8, uint16, int16, int32, int64, uint32, uint64."""


def zero_of(index: GraphIndex, output: str) -> float | None:
    """What stands for 0 in an integer output that is a rounded number; None for any other output."""
    kind = index.types.get(output)
    if kind is None or kind.tensor_type.elem_type not in _INTEGERS or not _is_computed(index, output):
        return None
    zeros = {_zero(index, node) for node in _roundings(index, output)} or {0.0}
    return zeros.pop() if len(zeros) == 1 else None  # parts with zeros of their own have none together


def _zero(index: GraphIndex, rounding: NodeProto | None) -> float | None:
    if rounding is None or len(rounding.input) < 3 or not rounding.input[2]:
        return 0.0
    return index.scalar(rounding.input[2])


def _roundings(index: GraphIndex, output: str) -> Iterator[NodeProto | None]:
    """The QuantizeLinear that makes each part of an output, moves aside; None for a part that has another maker."""
    waiting = [output]
    while waiting:
        node = index.makers.get(waiting.pop())
        if node is not None and is_op(node, *KEEPING, *MOVES) and not is_op(node, "Cast"):
            waiting += node.input if is_op(node, "Concat") else node.input[:1]
        else:
            yield node if node is not None and is_op(node, "QuantizeLinear") else None


def _is_computed(index: GraphIndex, output: str) -> bool:
    """Whether all that a value is made of by moves and arithmetic alone are floats that something computes."""
    waiting, seen, computed = [output], {output}, False
    while waiting:
        name = waiting.pop()
        if name in index.initializers:
            continue
        node = index.makers.get(name)
        if node is None:
            if not is_float(index, name):
                return False
            computed = True
            continue
        if is_op(node, *_DECIDES):
            return False
        given = _made_of(node)
        if given:
            waiting += [each for each in given if each and each not in seen]
            seen.update(given)
        elif is_float(index, name):
            computed = True
        else:
            return False
    return computed


def _made_of(node: NodeProto) -> list[str]:
    """What a node moves, rounds or adds up; nothing for what it computes otherwise."""
    if is_op(node, "Where"):
        return list(node.input[1:])
    if is_op(node, *_ARITHMETIC):
        return list(node.input)
    if is_op(node, "Cast", "QuantizeLinear", *_ROUNDS, *KEEPING, *MOVES):
        return list(node.input[:1])
    return []
