"""Write the remainder of integers with a quotient.

Before::

    Mod(x, n)

After, where n is constant and positive::

    rest = Sub(x, Mul(Div(x, n), n))
    Add(rest, Mul(Cast(Less(rest, 0)), n))

and where n is computed, or may be negative, so that the remainder has the sign of n::

    below, above, turned = Cast(Less(rest, 0)), Cast(Greater(rest, 0)), Cast(Less(n, 0))
    Add(rest, Mul(Add(below, Mul(turned, Sub(above, below))), n))

HTP (2.51, emulated) computes Mod in float16, wrongly above 2048 (4097 mod 3 is 0), and Div of integers rightly, but for
one thing: by a constant power of two it rounds a negative quotient down instead of to zero. The second line makes the
remainder right for either.

The result keeps its name. Left alone: floats; `fmod`, whose remainder has the sign of x; constant divisors of which one
is 0; types other than int32 and int64.
"""

from __future__ import annotations

from onnx import NodeProto, TensorProto, helper

from pipeline.graph.ir.index import element_type, is_op
from pipeline.graph.ir.node_builder import Additions, each_node

_KINDS = (TensorProto.INT32, TensorProto.INT64)


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace a Mod of integers."""
    if not is_op(node, "Mod") or any(attribute.name == "fmod" and attribute.i for attribute in node.attribute):
        return False
    x, n, result = node.input[0], node.input[1], node.output[0]
    kind, divisor = element_type(added.index, result), added.index.constant(n)
    if kind not in _KINDS or not (divisor is None or divisor.all()):
        return False
    zero = added.number(f"{result}_zero", 0, helper.tensor_dtype_to_np_dtype(kind))
    whole = added.op("Mul", added.op("Div", x, n, out=f"{result}_quotient"), n, out=f"{result}_whole")
    rest = added.op("Sub", x, whole, out=f"{result}_rest")

    def as_number(op: str, value: str, name: str) -> str:
        return added.op("Cast", added.op(op, value, zero, out=f"{result}_is_{name}"), out=f"{result}_{name}", to=kind)

    missing = as_number("Less", rest, "below")
    if divisor is None or (divisor < 0).any():
        other = added.op("Sub", as_number("Greater", rest, "above"), missing, out=f"{result}_other_side")
        turned = added.op("Mul", as_number("Less", n, "turned"), other, out=f"{result}_turned_side")
        missing = added.op("Add", missing, turned, out=f"{result}_short")
    added.replace("Add", rest, added.op("Mul", missing, n, out=f"{result}_missing"), out=result)
    return True
