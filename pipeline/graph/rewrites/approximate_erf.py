"""Write an error function as the hyperbolic tangent of a polynomial.

Before::

    Erf(x)

After, where u is (x / c)², and x is cut at c = 3.92, where the function is 1 in float32::

    Tanh(Mul(x, a0 + u (a1 + u (a2 + u (a3 + u (a4 + u a5))))))

The polynomial was fitted here, by least squares whose weights follow the error, to the smallest error that six numbers
allow: 5e-7 at most, and 3e-6 of the result near 0. QNN (EP 2.7) leaves Erf to the CPU. On HTP (2.51, emulated) this
is, by how far x reaches::

    x up to     0.1    1     4    50
    float16      65   68    75    88 dB
    16 bits      66   82    83    78

The result keeps its name. An Erf in a Gelu is fuse_gelu's. Left alone: types other than float32.
"""

from __future__ import annotations

from onnx import NodeProto

from pipeline.graph.ir.index import is_float32, is_op
from pipeline.graph.ir.node_builder import Additions, each_node

AFTER = {"fuse_gelu": "it looks for an Erf"}

_END = 3.92
_POLYNOMIAL = (
    1.1283756011548747, 0.10280021210288104, -0.00025756056550116976, -0.0005673190562165362, 6.946632411700867e-05,
    -2.9488824595725704e-06,
)  # fmt: skip
"""Of x², the lowest power first."""


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace an Erf."""
    if not is_op(node, "Erf") or not is_float32(added.index, node.output[0]):
        return False
    result = node.output[0]
    ends = added.number(f"{result}_least", -_END), added.number(f"{result}_most", _END)
    x = added.op("Clip", node.input[0], *ends, out=f"{result}_cut")
    part = added.op("Mul", x, added.number(f"{result}_inverse", 1 / _END), out=f"{result}_part")
    square = added.op("Mul", part, part, out=f"{result}_square")
    *lower, highest = (factor * _END ** (2 * power) for power, factor in enumerate(_POLYNOMIAL))
    value = added.op("Mul", square, added.number(f"{result}_a{len(lower)}", highest), out=f"{result}_p{len(lower)}")
    for power, factor in reversed(list(enumerate(lower))):
        value = added.op("Add", value, added.number(f"{result}_a{power}", factor), out=f"{result}_s{power}")
        if power:
            value = added.op("Mul", value, square, out=f"{result}_p{power}")
    added.replace("Tanh", added.op("Mul", x, value, out=f"{result}_argument"), out=result)
    return True
