"""Integers and booleans: operators of them that QNN does not have, or that HTP computes wrongly.

Figures are of QNN EP 2.7 and HTP 2.51, emulated. Results keep their names.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from pipeline.graph.ir.index import FLOATS, is_op
from pipeline.graph.ir.ops import MOVES_FIRST
from pipeline.graph.ir.rules import INTS, GraphValue, Node, lower, op

_BOOL, _INT32, _INT64 = TensorProto.BOOL, TensorProto.INT32, TensorProto.INT64
_SIGNED = (TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64)


@lower(
    "Neg",
    "Sign",
    of=INTS,
    after={
        "compute_lengths_in_integers": "it writes signs of integers",
    },
)
def compare_signs(n: Node) -> GraphValue:
    """``Neg(x) -> 0 - x`` and ``Sign(x) -> Cast(x > 0) - Cast(x < 0)`` of integers, which QNN leaves to the CPU."""
    x, zero = n[0], n.number(0)
    if n.kind == "Neg":
        return op.Sub(zero, x)
    return op.Greater(x, zero).cast(n.y.kind) - op.Less(x, zero).cast(n.y.kind)


@lower(
    "Div",
    of=INTS,
    after=dict.fromkeys(("compute_lengths_in_integers", "decompose_mod"), "it writes quotients of integers"),
)
def negate_divisors(n: Node) -> GraphValue | None:
    """``x / n -> x / -n * -1`` of integers, for a constant n that is a power of two.

    HTP shifts in place of dividing, and so rounds a negative quotient down: -7 by 2 is -4, and -3 in ONNX. By any other
    number, the negative included, it is right.
    """
    divisor = n[1].array
    size = int(divisor.flat[0]) if divisor is not None and divisor.size == 1 else 0
    if divisor is None or size <= 1 or size & (size - 1):
        return None
    return op.Div(n[0], -divisor) * -1


@lower("Cast")
def cast_by_int32(n: Node) -> GraphValue | None:
    """``Cast(x of uint8, float)``, and ``Cast(x of bool, int64)`` that is an output, by way of int32.

    In a float16 graph HTP takes bytes for booleans: each that is not 0 becomes 1, and nothing says so. A boolean it
    does not cast to an output of int64 ("Failed to create Cast node").
    """
    if n[0].name not in n.index.types:
        return None
    kinds = n[0].kind, n.y.kind
    flag = kinds == (_BOOL, _INT64) and n.y.is_output
    return n[0].cast(_INT32).cast(kinds[1]) if flag or kinds == (TensorProto.UINT8, TensorProto.FLOAT) else None


@lower("Cast", of=(_BOOL,))
def compare_casts(n: Node) -> GraphValue | None:
    """``Cast(x, bool) -> Not(x == 0)`` of signed integers that were no booleans before.

    HTP takes negative integers for false: a mask of -1 masks nothing. Floats of either sign are right.
    """
    before = n[0].maker("Cast")
    if n[0].name not in n.index.types or n[0].kind not in _SIGNED or (before and before[0].kind == _BOOL):
        return None
    return op.Not(op.Equal(n[0], 0))


@lower("Equal")
def simplify_boolean_equal(n: Node) -> GraphValue | bool:
    """``x == True -> x``, ``x == False -> Not(x)`` and ``x == y -> Not(Xor(x, y))`` of booleans.

    PyTorch's dynamo exporter writes the first for each ``length // 2`` of integers, the last for each ``a // b``. QNN
    fails to add an Equal of booleans, and leaves it to the CPU (a small Parakeet: 3 partitions, now 1). A result in
    place of which x is read is dropped. Left alone: a comparison with true that is an output.
    """
    if (n[0].name not in n.index.types and not n[0].is_constant) or n[0].kind != _BOOL:
        return False
    for value, other in ((n[0], n[1]), (n[1], n[0])):
        array = other.array
        if array is None or array.dtype != bool or array.size == 0 or (array != array.flat[0]).any():
            continue
        if value.name not in n.index.types or value.kind != _BOOL or value.shape != n.y.shape:
            break
        if not array.flat[0]:
            return op.Not(value, name=n.name)
        readers = n.y.readers
        for reader in readers:
            for at, name in enumerate(reader.proto.input):
                if name == n.y.name:
                    reader.read(at, value)
        return bool(readers) and not n.y.is_output
    return op.Not(op.Xor(n[0], n[1]))


LARGEST = 65504.0
"""The largest number of float16."""
_TURNED = {
    "Equal": "Equal", "Greater": "Less", "GreaterOrEqual": "LessOrEqual", "Less": "Greater",
    "LessOrEqual": "GreaterOrEqual",
}  # fmt: skip
"""Each comparison, and that of the same two in the other order."""
_ABOVE = {"Equal": "GreaterOrEqual", "Greater": "GreaterOrEqual", "LessOrEqual": "Less"}
_BELOW = {"Equal": "LessOrEqual", "Less": "LessOrEqual", "GreaterOrEqual": "Greater"}
"""Comparisons with a far number above or below 0, and those of the clipped value with the bound, if others."""


@lower(*_TURNED)
def compare_far_numbers(n: Node) -> GraphValue | None:
    """``x > 1e19 -> Clip(x, -65504, 65504) >= 65504`` for inputs, moved or not, where 1e20 means "missing".

    On HTP an input beyond 65504 is infinite, and no comparison with an infinity is true. Numbers between 65504 and the
    one that x is compared with count as that. Left alone: computed values; numbers up to 65504, and infinities.
    """
    x, other, operator = n[0], n[1], n.kind
    if x.is_constant:
        x, other, operator = other, x, _TURNED[operator]
    number = other.scalar
    if number is None or not LARGEST < abs(number) < math.inf or x.is_constant or not x.is_f32 or not _is_given(x):
        return None
    bound = math.copysign(LARGEST, number)
    operator = (_ABOVE if bound > 0 else _BELOW).get(operator, operator)
    clipped = op.Clip(x, -LARGEST, LARGEST)
    made: GraphValue = getattr(op, operator)(clipped, bound)
    return made


def _is_given(x: GraphValue) -> bool:
    """Whether a value is an input, or moved from one."""
    index, name = x.added.index, x.name
    while (maker := index.makers.get(name)) is not None and is_op(maker, *MOVES_FIRST):
        name = maker.input[0]
    return name not in index.makers and name not in index.initializers


_LARGEST_POWER = 32768
"""The largest power of two that float16 holds."""


@lower("Mod", of=(*INTS, TensorProto.FLOAT))
def decompose_mod(n: Node) -> GraphValue | None:
    """Write a remainder with a quotient.

    ``Mod(x, n) -> rest + Cast(rest < 0) * n`` with ``rest = x - x / n * n`` of integers, for a constant n above zero. A
    computed n, or one that may be negative, has ``rest + (below + turned * (above - below)) * n``, with `below` for
    rest < 0, `above` for rest > 0, `turned` for n < 0. With `fmod` the remainder has the sign of x: `rest` of integers,
    and ``Sign(x) * (|x| - Floor(|x| / |n|) * |n|)`` of floats. For a constant power of two from 1 to 32768 that is
    exact. Any other quotient is rounded, so that just below a multiple of n it may become whole: a remainder below 0
    gets |n| back. That is the remainder of x, or of a number within |x| / 2^23 of it.

    QNN leaves `fmod` to the CPU. HTP computes Mod in float16, wrongly above 2048 (4097 mod 3 is 0), and Div of integers
    rightly, but for a constant power of two, by which it rounds a negative quotient down. The form is right for either;
    with `fmod`, negate_divisors makes it so. Left alone: constant divisors of which one is 0, infinite or NaN.
    """
    x, divisor, fmod, in_floats = n[0], n[1].array, n.attr("fmod", 0), n.y.is_f32
    if (in_floats and not fmod) or (divisor is not None and not divisor.all()):
        return None
    if in_floats:
        if divisor is not None and not np.isfinite(divisor).all():
            return None
        size, step = op.Abs(x), op.Abs(n[1]) if divisor is None else n.constant(np.abs(divisor))
        rest = size - op.Floor(size / step) * step
        if divisor is None or not _divides_exactly(np.abs(divisor)):
            rest = op.Where(op.Less(rest, 0), rest + step, rest)
        return op.Sign(x) * rest
    rest, kind = x - x / n[1] * n[1], n.y.kind
    if fmod:
        return rest
    missing = op.Less(rest, 0).cast(kind)
    if divisor is None or (divisor < 0).any():
        missing = missing + op.Less(n[1], 0).cast(kind) * (op.Greater(rest, 0).cast(kind) - missing)
    return rest + missing * n[1]


def _divides_exactly(step: NDArray[np.float32]) -> bool:
    """Whether a quotient by each of these is exact, whatever is divided, and none is infinite."""
    return bool(((np.frexp(step)[0] == 0.5) & (step >= 1) & (step <= _LARGEST_POWER)).all())


@lower(
    "OneHot",
    of=(*FLOATS, *INTS),
    after={
        "count_indices_from_the_front": "a negative index is counted there, one that is beyond both ends has no place"
    },
)
def compare_one_hots(n: Node) -> GraphValue | None:
    """``OneHot(indices, depth, [off, on]) -> Cast(indices == places) * (on - off) + off``; `places` 0 to depth - 1.

    QNN takes a OneHot whose values are constants alone, which a quantized graph has not: each such node stayed on the
    CPU, and in float16 beside integers it gave 0.5 for 0. One of integers, as torch's older exporter writes `one_hot`,
    stays on the CPU before floats and is not compiled ("out of memory") before a sum: its comparison is cast to int32
    first. Left alone: a computed depth or computed values.
    """
    indices, depth, values = n[0], n[1].scalar, n[2].array
    if depth is None or values is None:
        return None
    made = n.y.shape
    axis = n.attr("axis", -1) % len(made)
    apart = (indices if indices.kind == _INT32 else indices.cast(_INT32)).reshape(*made[:axis], 1, *made[axis + 1 :])
    dims = [int(depth) if at == axis else 1 for at in range(len(made))]
    there = op.Equal(apart, np.arange(int(depth), dtype=np.int32).reshape(dims))
    off, on = (values.dtype.type(each) for each in values)
    share = (there.cast(_INT32) if n.y.kind == _INT64 else there).cast(n.y.kind)
    if (off, on) == (0, 1):
        return share
    scaled = op.Mul(share, on - off)
    return scaled if off == 0 else scaled + off


_NARROW = (TensorProto.INT8, TensorProto.INT16, TensorProto.UINT16)


@lower(
    "Cast",
    of=(TensorProto.UINT8, _INT32, _INT64, *_NARROW),
    after={"decompose_mod": "it writes Casts to integers, which may be outputs"},
)
def flatten_output_casts(n: Node) -> GraphValue | None:
    """``Cast(x, uint8) -> Reshape(Cast(Reshape(x, flat), uint8), dims)`` where it makes an output; by int32 of others.

    Where a picture comes of convolutions, onnxruntime moves the Transpose from their layout behind the Cast, and HTP
    has none of integers in a quantized graph; of int64 it compiles one that ends with "ORT Tensor data size does not
    match QNN tensor data size" at the first run. A Cast to int64 that makes an output by itself is left to the CPU. No
    Transpose is moved across a Reshape. HTP has no Cast to int8, int16 and uint16: the last one is the CPU's, at the
    edge, as that of a float64 is. Left alone: integers that something computes with.
    """
    dims, kind = n.y.shape, n.y.kind
    if not n.y.is_output or n.y.readers or n[0].name not in n.index.types or not n[0].is_float:
        return None
    count = math.prod(dims)
    row = n[0].reshape(*([count] if len(dims) == 2 else [1, count]))
    if kind in _NARROW:
        return row.cast(_INT32).reshape(*dims).cast(kind)
    return row.cast(kind).reshape(*dims)
