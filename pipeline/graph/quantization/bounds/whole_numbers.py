"""Values whose whole numbers an encoding has to hold as they are.

Of a range that calibration measured, 5 is no multiple of the scale: 4.9986 comes back, of which a Cast to integers
makes 4 and a Floor 4.0. Half of all labels, lengths and counts were off by one, which are 30 dB. So the scale of what
is read by such an operator, and of what is a whole number by what computes it, is a power of two, at the cost of a bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from onnx import NodeProto

from pipeline.graph.ir.index import WHOLE, GraphIndex, element_type, is_float, is_op
from pipeline.graph.ir.moves import MOVES, MOVES_FIRST
from pipeline.graph.quantization.operand_rules import moves_data

_STEPS = ("Ceil", "Floor", "Round")
"""Operators that make another number of what is just below a whole one, or just off a half."""
_MAKE_WHOLE = (*_STEPS, "Sign")
_KEEP_WHOLE = (
    "Abs", "Add", "Clip", "Max", "Min", "Mul", "Neg", "ReduceMax", "ReduceMin", "ReduceSum", "Relu", "Sub", "Sum",
)  # fmt: skip
_BY_ELEMENT = ("Abs", "Add", "Clip", "Div", "Max", "Min", "Mul", "Neg", "Relu", "Sub")
_SMALL = 4096
"""Elements of a constant that is looked into."""


def held_exactly(index: GraphIndex) -> frozenset[str]:
    """The float values of a model, in topological order, whose whole numbers must come back from an encoding."""
    steps = (node for node in index.model.graph.node if is_step(index, node))
    return whole_values(index).union(*(_made_from(index, str(node.input[0])) for node in steps))


def whole_values(index: GraphIndex) -> frozenset[str]:
    """The float values of a model, in topological order, that are whole numbers by what computes them."""
    whole = set[str]()
    for node in index.model.graph.node:
        if node.output and is_float(index, str(node.output[0])) and _makes_whole(index, node, whole):
            whole.update(str(name) for name in node.output if name)
    return frozenset(whole)


def is_rounded(index: GraphIndex, name: str) -> bool:
    """Whether a value is what an operator has rounded, or cast from integers, moved at most."""
    while (node := index.makers.get(name)) is not None and moves_data(index, node):
        name = str(node.input[0])
    return node is not None and is_op(node, *_MAKE_WHOLE, "Cast")


def is_step(index: GraphIndex, node: NodeProto) -> bool:
    """Whether a node jumps at whole numbers, or at halves: it rounds, or casts a float to integers."""
    if is_op(node, "Cast"):
        return is_float(index, node.input[0]) and element_type(index, node.output[0]) in WHOLE
    return is_op(node, *_STEPS) and is_float(index, node.input[0])


def exact_scale(scale: float) -> float:
    """The next power of two, of which 1 is a multiple; a scale beyond 1 as it is."""
    return math.ldexp(1.0, math.ceil(math.log2(scale))) if 0 < scale < 1 else scale


def _made_from(index: GraphIndex, name: str) -> Iterator[str]:
    """A value, and those that it is of by moves, bounds, its sign, and what is computed with constants."""
    while name not in index.initializers:
        yield name
        node = index.makers.get(name)
        if node is None:
            return
        computed = [str(given) for given in node.input if given and given not in index.initializers]
        if moves_data(index, node):
            name = str(node.input[0])
        elif is_op(node, *_BY_ELEMENT) and len(computed) == 1:
            name = computed[0]
        else:
            return


def _makes_whole(index: GraphIndex, node: NodeProto, whole: set[str]) -> bool:
    if is_op(node, *_MAKE_WHOLE):
        return True
    if is_op(node, "Cast"):
        given = str(node.input[0])
        return _is_whole(index, given, whole) if is_float(index, given) else True
    if is_op(node, "Where"):
        given = node.input[1:]
    elif is_op(node, *_KEEP_WHOLE, *MOVES):
        given = node.input[:1] if is_op(node, *MOVES_FIRST) or node.op_type.startswith("Reduce") else node.input
    else:
        return False
    return all(_is_whole(index, str(each), whole) for each in given if each)


def _is_whole(index: GraphIndex, name: str, whole: set[str]) -> bool:
    """Whether a value is one of the `whole` ones, or a constant of whole numbers."""
    if name not in index.initializers:
        return name in whole
    size = math.prod(index.initializers[name].dims)
    array = index.constant(name) if size <= _SMALL else None
    if array is None or array.dtype.kind not in "fiu":
        return False
    return bool(np.isfinite(array).all() and (array == np.rint(array)).all())
