"""Compare inputs with numbers that float16 does not hold.

Before, for an input x, moved or not, in which 1e20 means "missing"::

    Greater(x, 1e19)    Equal(x, 1e20)    Less(x, 1e19)    Less(x, -1e19)

After, with c = Clip(x, -65504, 65504)::

    GreaterOrEqual(c, 65504)    GreaterOrEqual(c, 65504)    Less(c, 65504)    LessOrEqual(c, -65504)

On HTP (2.51, emulated) an input beyond 65504 is infinite, and no comparison with an infinity is true; a Clip makes a
number of it. Numbers between 65504 and the one that x is compared with, which HTP does not hold, count as that.

The result keeps its name. Left alone: values that are computed; numbers up to 65504, and infinities.
"""

from __future__ import annotations

import math

from onnx import NodeProto

from pipeline.graph.ir.index import GraphIndex, is_float32, is_op
from pipeline.graph.ir.moves import MOVES_FIRST
from pipeline.graph.ir.node_builder import Additions, each_node

LARGEST = 65504.0
_TURNED = {
    "Equal": "Equal", "Greater": "Less", "GreaterOrEqual": "LessOrEqual", "Less": "Greater",
    "LessOrEqual": "GreaterOrEqual",
}  # fmt: skip
"""Each comparison, and that of the same two in the other order."""
_ABOVE = {"Equal": "GreaterOrEqual", "Greater": "GreaterOrEqual", "LessOrEqual": "Less"}
_BELOW = {"Equal": "LessOrEqual", "Less": "LessOrEqual", "GreaterOrEqual": "Greater"}
"""Comparisons with a far number above or below 0, and those of what is clipped there with the bound, if others."""


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Compare what is clipped with its bound."""
    if not is_op(node, *_TURNED):
        return False
    index = added.index
    value, other, operator = node.input[0], node.input[1], node.op_type
    if value in index.initializers:
        value, other, operator = other, value, _TURNED[operator]
    number = index.scalar(other) if other in index.initializers else None
    if number is None or not LARGEST < abs(number) < math.inf or not _is_given(index, value):
        return False
    bound = math.copysign(LARGEST, number)
    ends = [added.number(f"{node.output[0]}_{end}", sign * LARGEST) for end, sign in (("least", -1), ("most", 1))]
    clipped = added.op("Clip", value, *ends, out=f"{node.output[0]}_clipped")
    operator = (_ABOVE if bound > 0 else _BELOW).get(operator, operator)
    added.replace(operator, clipped, added.number(f"{node.output[0]}_bound", bound), out=node.output[0])
    return True


def _is_given(index: GraphIndex, name: str) -> bool:
    """Whether a value is an input of float32, or moved from one."""
    if name in index.initializers or not is_float32(index, name):
        return False
    while (maker := index.makers.get(name)) is not None and is_op(maker, *MOVES_FIRST):
        name = str(maker.input[0])
    return name not in index.makers and name not in index.initializers
