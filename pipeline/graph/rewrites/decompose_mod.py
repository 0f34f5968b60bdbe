"""Write a remainder with a quotient.

Before, of integers::

    Mod(x, n)

After, where n is constant and positive::

    rest = Sub(x, Mul(Div(x, n), n))
    Add(rest, Mul(Cast(Less(rest, 0)), n))

and where n is computed, or may be negative, so that the remainder has the sign of n::

    below, above, turned = Cast(Less(rest, 0)), Cast(Greater(rest, 0)), Cast(Less(n, 0))
    Add(rest, Mul(Add(below, Mul(turned, Sub(above, below))), n))

With `fmod` the remainder has the sign of x. It is `rest` itself of integers, and of floats::

    size = Abs(x)
    Mul(Sign(x), Sub(size, Mul(Floor(Div(size, |n|)), |n|)))

where |n| is a constant power of two from 1 to 32768, whose quotients are exact and which float16 holds: to the bit. Any
other quotient is rounded, so that just below a multiple of n it may become whole. What is left is negative then, and
gets |n| back::

    rest = Sub(size, Mul(Floor(Div(size, |n|)), |n|))
    Mul(Sign(x), Where(Less(rest, 0), Add(rest, |n|), rest))

which is the remainder of x, or of a number that float32 has within |x| / 2^23 of it. Close to a multiple of n that may
be 0 where the other is nearly n, as of any x that was rounded.

QNN EP 2.7 leaves Mod with `fmod` to the CPU. HTP (2.51, emulated) computes Mod in float16, wrongly above 2048 (4097 mod
3 is 0), and Div of integers rightly, but for one thing: by a constant power of two it rounds a negative quotient down
instead of to zero. The second line makes the remainder right for either; with `fmod`, negate_divisors does.

The result keeps its name. Left alone: constant divisors of which one is 0, infinite or NaN; types other than int32,
int64 and float32.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper

from pipeline.graph.ir.attributes import integer
from pipeline.graph.ir.index import element_type, is_float32, is_op
from pipeline.graph.ir.node_builder import Additions, each_node

_KINDS = (TensorProto.INT32, TensorProto.INT64)
_LARGEST = 32768
"""The largest power of two that float16 holds."""


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace a Mod that QNN computes otherwise."""
    kinds = (*_KINDS, TensorProto.FLOAT) if _has_sign_of_x(node) else _KINDS
    if not is_op(node, "Mod") or element_type(added.index, node.output[0]) not in kinds:
        return False
    divisor = added.index.constant(node.input[1])
    if divisor is not None and not divisor.all():
        return False
    if not is_float32(added.index, node.output[0]):
        _of_integers(added, node)
        return True
    if divisor is not None and not np.isfinite(divisor).all():
        return False
    _of_floats(added, node, None if divisor is None else np.abs(divisor))
    return True


def _has_sign_of_x(node: NodeProto) -> bool:
    return bool(integer(node, "fmod"))


def _divides_exactly(step: NDArray[np.float32]) -> bool:
    """Whether a quotient by each of these is exact, whatever is divided, and none is infinite."""
    return bool(((np.frexp(step)[0] == 0.5) & (step >= 1) & (step <= _LARGEST)).all())


def _of_floats(added: Additions, node: NodeProto, divisor: NDArray[np.float32] | None) -> None:
    x, result = node.input[0], node.output[0]
    size = added.op("Abs", x, out=f"{result}_size")
    if divisor is None:
        step = added.op("Abs", node.input[1], out=f"{result}_step")
    else:
        step = added.constant(f"{result}_step", divisor)
    whole = added.op("Floor", added.op("Div", size, step, out=f"{result}_quotient"), out=f"{result}_times")
    rest = added.op("Sub", size, added.op("Mul", whole, step, out=f"{result}_whole"), out=f"{result}_rest")
    if divisor is None or not _divides_exactly(divisor):
        short = added.op("Less", rest, added.number(f"{result}_zero", 0), out=f"{result}_is_short")
        longer = added.op("Add", rest, step, out=f"{result}_longer")
        rest = added.op("Where", short, longer, rest, out=f"{result}_whole_rest")
    added.replace("Mul", added.op("Sign", x, out=f"{result}_sign"), rest, out=result)


def _of_integers(added: Additions, node: NodeProto) -> None:
    x, n, result = node.input[0], node.input[1], node.output[0]
    kind = element_type(added.index, result)
    quotient = added.op("Div", x, n, out=f"{result}_quotient")
    whole = added.op("Mul", quotient, n, out=f"{result}_whole")
    if _has_sign_of_x(node):
        added.replace("Sub", x, whole, out=result)
        return
    zero = added.number(f"{result}_zero", 0, helper.tensor_dtype_to_np_dtype(kind))
    rest = added.op("Sub", x, whole, out=f"{result}_rest")

    def as_number(op: str, value: str, name: str) -> str:
        return added.op("Cast", added.op(op, value, zero, out=f"{result}_is_{name}"), out=f"{result}_{name}", to=kind)

    missing = as_number("Less", rest, "below")
    divisor = added.index.constant(n)
    if divisor is None or (divisor < 0).any():
        other = added.op("Sub", as_number("Greater", rest, "above"), missing, out=f"{result}_other_side")
        turned = added.op("Mul", as_number("Less", n, "turned"), other, out=f"{result}_turned_side")
        missing = added.op("Add", missing, turned, out=f"{result}_short")
    added.replace("Add", rest, added.op("Mul", missing, n, out=f"{result}_missing"), out=result)
