"""Compute magnitudes, and logarithms of squares, without a square that leaves the format.

Before, for a sum of squares S of one or two parts, `epsilon` added to it or not::

    S = Add(Add(Mul(a, a), Mul(b, b)), epsilon)       S = ReduceSum(Mul(x, x)) over an axis of two: a, b
    Sqrt(S)
    Log(S)
    Log(Max(S, floor))

After, where `e` is the root of `epsilon`, and `d` is `Max(Abs(a), Abs(b), e, 2**-14)`::

    M = Mul(d, Sqrt(Add(Add(Mul(a/d, a/d), Mul(b/d, b/d)), Mul(e/d, e/d))))       M = Abs(a) for a alone
    M
    Mul(Log(M), 2)
    Mul(Log(Max(M, root of floor)), 2)

The sum is the same for any `d` above zero; 2**-14 is the smallest normal float16.

Spectra of short frames of sound are magnitudes like this, and their squares span twice the decibels that they do: of
squares from 0 to 200 a step in 16 bits is 0.003, so every magnitude below 0.05 becomes 0. A quiet frame among loud ones
(HTP 2.51, emulated, against the original)::

    format    as loud as the others by    by squares    by quotients
    uint16    1/1000                      0.0 dB        31.3 dB
    float16   1/10000                     2.8           63.7

Of 500 frames silero-vad has 66 below 20 dB with squares in uint16, while all together have 32. A floor of 1e-12 is 0
in float16, where HTP's Log of 0 is -7.6; its root is none, and HTP's Log is right down to 2**-24.

The result keeps its name. Left alone: types other than float32, parts of different shapes, sums of anything else, and
quotients by one value, which is what this makes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from pipeline.graph.ir.index import GraphIndex, is_float32, is_op
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.node_builder import Additions, each_node
from pipeline.graph.ir.reductions import keeps_axes, reduced_axes

_SMALLEST = 2.0**-14


@dataclass(frozen=True)
class _Squares:
    """A sum of squares: of one value, of two, or of the two halves of `parts[0]` along `axis`; and what is added."""

    parts: tuple[str, ...]
    epsilon: float
    axis: int | None = None
    keep: bool = True


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace a root or logarithm of a sum of squares."""
    if not is_op(node, "Sqrt", "Log") or not is_float32(added.index, node.output[0]):
        return False
    source, result = str(node.input[0]), str(node.output[0])
    bounded, floor = _with_floor(added.index, source) if node.op_type == "Log" else (source, 0.0)
    squares = _squares(added.index, bounded, added.shape(result))
    if squares is None:
        return False
    if node.op_type == "Log":
        _write_log(added, result, squares, floor)
    else:
        _write_magnitude(added, result, squares, out=result)
    return True


def _with_number(index: GraphIndex, name: str, operator: str) -> tuple[str, float]:
    """The value that a node joins with a number above zero, and that number; the value itself and 0 without one."""
    node = index.maker(name, operator)
    if node is not None and len(node.input) == 2:
        for value, other in (tuple(node.input), tuple(reversed(node.input))):
            number = index.scalar(other) if other in index.initializers else None
            if number is not None and 0 < number < math.inf:
                return str(value), number
    return name, 0.0


def _with_floor(index: GraphIndex, name: str) -> tuple[str, float]:
    """The same for a bound from below, which may be a Clip's alone."""
    node = index.maker(name, "Clip")
    if node is not None and len(node.input) >= 2 and node.input[1] and not any(node.input[2:]):
        low = index.scalar(node.input[1]) if node.input[1] in index.initializers else None
        if low is not None and 0 < low < math.inf:
            return str(node.input[0]), low
    return _with_number(index, name, "Max")


def _squares(index: GraphIndex, name: str, shape: tuple[int, ...]) -> _Squares | None:
    """The sum of squares that a value of this shape is."""
    summed, epsilon = _with_number(index, name, "Add")
    reduction = index.maker(summed, "ReduceSum")
    if reduction is not None:
        return _halves(index, reduction, epsilon)
    total = index.maker(summed, "Add")
    parts = [_root(index, part) for part in (total.input if total is not None else [summed])]
    known = tuple(part for part in parts if part is not None)
    if len(known) != len(parts) or {shape_of(index.types[part]) for part in known} != {shape}:
        return None
    return None if _of_one_divisor(index, known) else _Squares(known, epsilon)


def _halves(index: GraphIndex, reduction: NodeProto, epsilon: float) -> _Squares | None:
    whole = _root(index, str(reduction.input[0]))
    axes = reduced_axes(index, reduction)
    if whole is None or axes is None or len(axes) != 1 or shape_of(index.types[whole])[axes[0]] != 2:
        return None
    return _Squares((whole,), epsilon, axes[0], keeps_axes(reduction))


def _root(index: GraphIndex, name: str) -> str | None:
    """What a value is the square of; None if it is no computed one."""
    product = index.maker(name, "Mul")
    if product is None or product.input[0] != product.input[1] or product.input[0] not in index.types:
        return None
    return str(product.input[0])


def _of_one_divisor(index: GraphIndex, parts: tuple[str, ...]) -> bool:
    """Whether all are quotients by the same value, as in what is written here."""
    quotients = [index.maker(name, "Div") for name in parts]
    return None not in quotients and len({node.input[1] for node in quotients if node is not None}) == 1


def _write_log(added: Additions, result: str, squares: _Squares, floor: float) -> None:
    size = _write_magnitude(added, result, squares)
    if floor:
        least = added.number(f"{result}_least", math.sqrt(floor))
        size = added.op("Max", size, least, out=f"{result}_bounded")
    half = added.op("Log", size, out=f"{result}_half")
    added.replace("Mul", half, added.number(f"{result}_two", 2), out=result)


def _write_magnitude(added: Additions, result: str, squares: _Squares, out: str = "") -> str:
    """Add the nodes; the last makes `out`, a value of the graph, or one that is named here."""
    parts = list(squares.parts)
    if squares.axis is not None:
        places = [[0], [1]] if squares.keep else [0, 1]  # a place without brackets drops the axis
        indices = [added.constant(f"{result}_place", np.array(place, np.int64)) for place in places]
        parts = [added.op("Gather", parts[0], at, out=f"{result}_part", axis=squares.axis) for at in indices]
    sizes = [added.op("Abs", part, out=f"{result}_size") for part in parts[:-1]]
    if len(parts) == 1 and not squares.epsilon:
        return _last(added, "Abs", [parts[0]], f"{result}_magnitude", out)
    size = added.op("Abs", parts[-1], out=f"{result}_size")
    for other in sizes:
        size = added.op("Max", size, other, out=f"{result}_larger")
    root = math.sqrt(squares.epsilon)
    floor = added.number(f"{result}_floor", max(root, _SMALLEST))
    size = added.op("Max", size, floor, out=f"{result}_divisor")
    if squares.epsilon:
        parts.append(added.number(f"{result}_epsilon", root))
    total = ""
    for part in parts:
        quotient = added.op("Div", part, size, out=f"{result}_quotient")
        square = added.op("Mul", quotient, quotient, out=f"{result}_square")
        total = added.op("Add", total, square, out=f"{result}_sum") if total else square
    return _last(added, "Mul", [size, added.op("Sqrt", total, out=f"{result}_root")], f"{result}_magnitude", out)


def _last(added: Additions, operator: str, inputs: list[str], name: str, out: str) -> str:
    if out:
        added.replace(operator, *inputs, out=out)
        return out
    return added.op(operator, *inputs, out=name)


AFTER = {
    "decompose_pow": "it looks for squares, which powers become",
    "decompose_reductions": "it looks for sums of squares, which ReduceSumSquare becomes",
}
