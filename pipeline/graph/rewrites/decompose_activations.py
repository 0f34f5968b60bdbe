"""Write activations that QNN doesn't have with operators that it has.

Before and after::

    Acos(x)          Sub(pi / 2, Asin(x))
    Acosh(x)         Log(Add(x, Sqrt(Sub(Mul(x, x), 1))))
    Asin(x)          Mul(Atan(Div(x, Add(Sqrt(Relu(Mul(Sub(1, x), Add(x, 1)))), 1))), 2)
    Asinh(x)         Mul(Sign(x), Log(Add(Abs(x), Sqrt(Add(Mul(x, x), 1)))))
    Atanh(x)         Mul(Log(Div(Add(x, 1), Sub(1, x))), 0.5)
    Celu(x)          Mul(Elu(Mul(x, 1 / alpha)), alpha)      or Elu(x) where alpha is 1
    Cosh(x)          Mul(Add(Exp(x), Exp(Neg(x))), 0.5)
    Sinh(x)          Mul(Sub(Exp(x), Exp(Neg(x))), 0.5)
    Softsign(x)      Div(x, Add(Abs(x), 1))
    Shrink(x)        Sub(x, Clip(x, -lambd, lambd))                       where bias is lambd
                     Where(Greater(Abs(x), lambd), Sub(x, Mul(Sign(x), bias)), 0)

QNN EP 2.7 leaves each of them to the CPU, a partition more each time: 5 for a small convolutional net with Celu, now 1,
at the same SQNR. It takes Asin in integers alone, at 17 dB where x ends at 1 and what it is rounded to is beyond it.
There ONNX has NaN, and this goes on with a number (57 dB). Results keep their names. Left alone: types other than
float32, and a Shrink with a negative lambd.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from onnx import NodeProto

from pipeline.graph.ir.attributes import real
from pipeline.graph.ir.index import is_float32, is_op
from pipeline.graph.ir.node_builder import Additions, each_node


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace one of these activations."""
    if not is_op(node, *_WRITERS) or not is_float32(added.index, node.output[0]):
        return False
    if node.op_type == "Shrink" and real(node, "lambd", 0.5) < 0:
        return False
    _WRITERS[node.op_type](added, node)
    return True


def _acos(added: Additions, node: NodeProto) -> None:
    result = node.output[0]
    rising = added.op("Mul", _half_arc(added, node), added.number(f"{result}_two", 2), out=f"{result}_rising")
    added.replace("Sub", added.number(f"{result}_right_angle", math.pi / 2), rising, out=result)


def _asin(added: Additions, node: NodeProto) -> None:
    result = node.output[0]
    added.replace("Mul", _half_arc(added, node), added.number(f"{result}_two", 2), out=result)


def _half_arc(added: Additions, node: NodeProto) -> str:
    """Half of the angle of this sine, whose tangent is from -1 to 1."""
    source, result = node.input[0], node.output[0]
    one = added.number(f"{result}_one", 1)
    below = added.op("Sub", one, source, out=f"{result}_below")
    above = added.op("Add", source, one, out=f"{result}_above")
    square = added.op("Relu", added.op("Mul", below, above, out=f"{result}_product"), out=f"{result}_square")
    cosine = added.op("Sqrt", square, out=f"{result}_cosine")
    divisor = added.op("Add", cosine, one, out=f"{result}_divisor")
    return added.op("Atan", added.op("Div", source, divisor, out=f"{result}_tangent"), out=f"{result}_half")


def _acosh(added: Additions, node: NodeProto) -> None:
    source, result = node.input[0], node.output[0]
    added.replace("Log", added.op("Add", source, _leg(added, node, "Sub", source), out=f"{result}_sum"), out=result)


def _asinh(added: Additions, node: NodeProto) -> None:
    source, result = node.input[0], node.output[0]
    size = added.op("Abs", source, out=f"{result}_size")
    log = added.op(
        "Log", added.op("Add", size, _leg(added, node, "Add", source), out=f"{result}_sum"), out=f"{result}_log"
    )
    added.replace("Mul", added.op("Sign", source, out=f"{result}_sign"), log, out=result)


def _leg(added: Additions, node: NodeProto, kind: str, source: str) -> str:
    """The root of a square and one, or of a square less one."""
    result = node.output[0]
    square = added.op("Mul", source, source, out=f"{result}_square")
    return added.op(
        "Sqrt", added.op(kind, square, added.number(f"{result}_one", 1), out=f"{result}_of"), out=f"{result}_leg"
    )


def _atanh(added: Additions, node: NodeProto) -> None:
    source, result = node.input[0], node.output[0]
    one = added.number(f"{result}_one", 1)
    above, below = (
        added.op("Add", source, one, out=f"{result}_above"),
        added.op("Sub", one, source, out=f"{result}_below"),
    )
    log = added.op("Log", added.op("Div", above, below, out=f"{result}_ratio"), out=f"{result}_log")
    added.replace("Mul", log, added.number(f"{result}_half", 0.5), out=result)


def _cosh(added: Additions, node: NodeProto) -> None:
    _halves(added, node, "Add")


def _sinh(added: Additions, node: NodeProto) -> None:
    _halves(added, node, "Sub")


def _halves(added: Additions, node: NodeProto, kind: str) -> None:
    """Half of what an exponential and its inverse come to."""
    source, result = node.input[0], node.output[0]
    rising = added.op("Exp", source, out=f"{result}_rising")
    falling = added.op("Exp", added.op("Neg", source, out=f"{result}_turned"), out=f"{result}_falling")
    both = added.op(kind, rising, falling, out=f"{result}_both")
    added.replace("Mul", both, added.number(f"{result}_half", 0.5), out=result)


def _celu(added: Additions, node: NodeProto) -> None:
    source, result = node.input[0], node.output[0]
    alpha = real(node, "alpha", 1.0)
    if alpha == 1:
        added.replace("Elu", source, out=result)
        return
    inverse = added.number(f"{result}_inverse", 1 / alpha)
    elu = added.op("Elu", added.op("Mul", source, inverse, out=f"{result}_scaled"), out=f"{result}_elu")
    added.replace("Mul", elu, added.number(f"{result}_alpha", alpha), out=result)


def _softsign(added: Additions, node: NodeProto) -> None:
    source, result = node.input[0], node.output[0]
    size = added.op("Abs", source, out=f"{result}_size")
    divisor = added.op("Add", size, added.number(f"{result}_one", 1), out=f"{result}_divisor")
    added.replace("Div", source, divisor, out=result)


def _shrink(added: Additions, node: NodeProto) -> None:
    source, result = node.input[0], node.output[0]
    lambd, bias = real(node, "lambd", 0.5), real(node, "bias", 0.0)
    high = added.number(f"{result}_lambd", lambd)
    if bias == lambd:
        middle = added.op("Clip", source, added.number(f"{result}_low", -lambd), high, out=f"{result}_middle")
        added.replace("Sub", source, middle, out=result)
        return
    kept = added.op("Greater", added.op("Abs", source, out=f"{result}_size"), high, out=f"{result}_kept")
    moved = source
    if bias:
        sign = added.op("Sign", source, out=f"{result}_sign")
        shift = added.op("Mul", sign, added.number(f"{result}_bias", bias), out=f"{result}_shift")
        moved = added.op("Sub", source, shift, out=f"{result}_moved")
    added.replace("Where", kept, moved, added.number(f"{result}_zero", 0), out=result)


_WRITERS: Mapping[str, Callable[[Additions, NodeProto], None]] = {
    "Acos": _acos,
    "Acosh": _acosh,
    "Asin": _asin,
    "Asinh": _asinh,
    "Atanh": _atanh,
    "Celu": _celu,
    "Cosh": _cosh,
    "Sinh": _sinh,
    "Softsign": _softsign,
    "Shrink": _shrink,
}
