"""The structure of outputs: bounds by a Sigmoid or Softmax, and parts that a Concat puts side by side.

What lies between 0 and 1 whatever goes in has a known scale, so an absolute error says something of it even while it is
near 0 all the time. What comes from different branches may be in different units, as boxes and scores are.

Integer outputs that are numbers: floats that a last Cast or QuantizeLinear rounds, as the pixels of a picture are.

One that is off by a step is nearly right, while a class that is off by one is another class. So what follows from a
choice, a comparison or integers of the graph's inputs is compared for equality, and only this is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from onnx import NodeProto

from pipeline.graph.accuracy.figures.state_outputs import state_outputs
from pipeline.graph.ir.attributes import integer, integers
from pipeline.graph.ir.index import GraphIndex, is_float, is_op
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.ops import KEEPING, MOVES, ROUNDINGS, VIEWS

_MAKES = ("Sigmoid", "HardSigmoid")
_SHARES = ("Softmax",)
_KEEPS_FIRST = (
    "AveragePool", "Cast", "Dropout", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "GlobalAveragePool",
    "GlobalMaxPool", "Identity", "MaxPool", "ReduceMax", "ReduceMean", "ReduceMin", "Reshape", "Slice", "Split",
    "Squeeze", "Tile", "TopK", "Transpose", "Unsqueeze",
)  # fmt: skip
_KEEPS_ALL = ("Concat", "Max", "Min", "Mul")
_RESHAPES = (*VIEWS, "Cast", "LogSoftmax", "Transpose")
_DEEPEST = 64


@dataclass(frozen=True)
class Part:
    """A range of an axis that comes from a branch of its own; `bounded` if it lies between 0 and 1."""

    start: int
    stop: int
    bounded: bool


@dataclass(frozen=True)
class Makeup:
    """The known structure of an output: all of it is `bounded`, or it has `parts` along an axis.

    `shares`: its entries add up to 1 along some axis, so each may be small without being near nothing. `state`: it is
    handed to the next run. `classes`: it is the sums of a last layer of so many columns, as scores of classes are.
    `zero`: it has integers that are rounded numbers, and this stands for 0.
    """

    bounded: bool = False
    shares: bool = False
    state: bool = False
    axis: int = 0
    parts: tuple[Part, ...] = ()
    classes: int = 0
    zero: float | None = None


NOTHING_KNOWN = Makeup()


def makeup_of_outputs(index: GraphIndex) -> dict[str, Makeup]:
    """The known structure of each output of a static model."""
    found, states = {}, state_outputs(index)
    for name in index.outputs:
        kind = _kind(index, name, 0)
        found[name] = Makeup(bounded=True, shares=kind in _SHARES) if kind else _parts(index, name)
        if found[name] == NOTHING_KNOWN:
            found[name] = Makeup(classes=_classes(index, name))
        found[name] = replace(found[name], zero=zero_of(index, name))
    return found | {name: replace(found[name], state=True) for name in states}


def heard_in_silence(index: GraphIndex) -> frozenset[str]:
    """The outputs whose dB say something of quiet samples: what lies between 0 and 1 is near 0 in silence."""
    return frozenset(name for name, makeup in makeup_of_outputs(index).items() if not makeup.bounded)


def _kind(index: GraphIndex, name: str, depth: int) -> str:
    """The operator that bounds a value, "" if none does."""
    node = index.makers.get(name)
    if node is None or depth > _DEEPEST:
        return ""
    if is_op(node, *_MAKES, *_SHARES):
        return node.op_type
    if is_op(node, "Clip"):
        ends = [index.scalar(end) if end else None for end in node.input[1:3]]
        return "Clip" if ends == [0.0, 1.0] else ""
    if is_op(node, *_KEEPS_FIRST):
        return _kind(index, node.input[0], depth + 1) if name == node.output[0] or is_op(node, "Split") else ""
    if is_op(node, *_KEEPS_ALL):
        kinds = [_kind(index, given, depth + 1) for given in node.input]
        return (kinds[0] if len(set(kinds)) == 1 else _MAKES[0]) if all(kinds) else ""
    return ""


def _classes(index: GraphIndex, name: str) -> int:
    """The columns of the constant matrix that a value is the product with, biases, scales and moves aside; or 0."""
    for _ in range(_DEEPEST):
        node = index.makers.get(name)
        if node is None:
            return 0
        if is_op(node, "Gemm", "MatMul"):
            dims = index.initializers[node.input[1]].dims if node.input[1] in index.initializers else ()
            return int(dims[0 if integer(node, "transB") else -1]) if len(dims) == 2 else 0
        if is_op(node, *_RESHAPES):
            name = node.input[0]
        elif is_op(node, "Add", "Mul"):
            computed = [given for given in node.input if given not in index.initializers]
            if len(computed) != 1:
                return 0
            name = computed[0]
        else:
            return 0
    return 0


def _parts(index: GraphIndex, name: str) -> Makeup:
    """The branches that Concats put side by side, as a detection head does with boxes and scores.

    Heads of several scales join the branches of each and then the scales, so every axis is looked at: one on which
    some is bounded and some is not tells most, then the one that is joined last.
    """
    found = [Makeup(axis=axis, parts=_along(index, name, axis, 0)) for axis in range(len(_shape(index, name)))]
    joined = [each for each in found if len(each.parts) > 1]
    mixed = [each for each in joined if len({part.bounded for part in each.parts}) > 1]
    last = [each for each in joined if each.axis == _joined_last(index, name)]
    return (mixed or last or joined or [NOTHING_KNOWN])[0]


def _along(index: GraphIndex, name: str, axis: int, depth: int) -> tuple[Part, ...]:
    """The parts of a value along an axis, as far as Concats and moves tell; all of it is one where they don't."""
    size = _shape(index, name)[axis]
    whole = (Part(0, size, bool(_kind(index, name, 0))),)
    node = index.makers.get(name)
    if node is None or depth > _DEEPEST or whole[0].bounded:
        return whole
    if is_op(node, "Concat"):
        if _axis(index, node) == axis:
            return _joined(_along(index, given, axis, depth + 1) for given in node.input)
        across = [_along(index, given, axis, depth + 1) for given in node.input]
        if len({tuple(part.stop for part in parts) for parts in across}) > 1:
            return whole
        return tuple(
            replace(parts[0], bounded=all(part.bounded for part in parts)) for parts in zip(*across, strict=True)
        )
    if (before := _axis_before(index, node, axis)) is not None:
        return _along(index, node.input[0], before, depth + 1)
    return whole


def _joined(pieces: Iterable[tuple[Part, ...]]) -> tuple[Part, ...]:
    """Parts side by side."""
    found: list[Part] = []
    for parts in pieces:
        start = found[-1].stop if found else 0
        found += [Part(start + part.start, start + part.stop, part.bounded) for part in parts]
    return tuple(found)


def _axis_before(index: GraphIndex, node: NodeProto, axis: int) -> int | None:
    """The axis of a moved value that becomes this one of the result; None if none does, or the node moves nothing."""
    if is_op(node, "Cast", "Identity"):
        return axis
    if is_op(node, "Transpose"):
        order = integers(node, "perm") or [*range(len(_shape(index, node.output[0])))][::-1]
        return order[axis]
    if is_op(node, "Flatten", "Reshape", "Squeeze", "Unsqueeze") and node.input[0] in index.types:
        given, made = _shape(index, node.input[0]), _shape(index, node.output[0])
        places = range(len(given))
        kept = [at for at in places if given[at] == made[axis] and math.prod(given[:at]) == math.prod(made[:axis])]
        return kept[0] if kept else None
    return None


def _joined_last(index: GraphIndex, name: str) -> int | None:
    """The axis of the output along which the last Concat joins, behind moves alone."""
    for axis in range(len(_shape(index, name))):
        at, given = axis, name
        while (node := index.makers.get(given)) is not None and not is_op(node, "Concat"):
            before = _axis_before(index, node, at)
            if before is None:
                break
            at, given = before, node.input[0]
        if node is not None and is_op(node, "Concat") and _axis(index, node) == at:
            return axis
    return None


def _axis(index: GraphIndex, node: NodeProto) -> int:
    return integer(node, "axis") % len(_shape(index, node.input[0]))


def _shape(index: GraphIndex, name: str) -> tuple[int, ...]:
    kind = index.types.get(name)
    return shape_of(kind) if kind is not None else tuple(index.initializers[name].dims)


_ARITHMETIC = ("Abs", "Add", "Clip", "Concat", "Div", "Max", "Min", "Mul", "Neg", "Sub", "Sum")
_DECIDES = ("ArgMax", "ArgMin", "NonZero", "OneHot", "Sign", "TopK", "Unique")
"""Operators that give floats or integers which count or name something."""
_INTEGERS = frozenset((2, 3, 4, 5, 6, 7, 12, 13))
"""TensorProto.DataType of uint8, int8, uint16, int16, int32, int64, uint32, uint64."""


def zero_of(index: GraphIndex, output: str) -> float | None:
    """The zero point of an integer output that is a rounded number; None for any other output."""
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
    """The inputs that a node moves, rounds or adds up; empty for any other operator."""
    if is_op(node, "Where"):
        return list(node.input[1:])
    if is_op(node, *_ARITHMETIC):
        return list(node.input)
    if is_op(node, "Cast", "QuantizeLinear", *ROUNDINGS, *KEEPING, *MOVES):
        return list(node.input[:1])
    return []
