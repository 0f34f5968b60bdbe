"""Divide what a logarithm is taken of, where a factor in it is more than float16 holds.

Before, where `k` is above 65504 and `o` above zero, both constant numbers::

    Log(Add(Mul(x, k), o))

After, where `d` is the largest power of two up to `k` and `o * 2**14`::

    Add(Log(Add(Mul(x, k / d), o / d)), log(d))

Spectra of sound are made like this with `k` of 2**20 and `o` of 1. In float16 the factor is infinite, and of the sum
nothing is left: of x in 0 to 14.4, HTP (2.51, emulated) gives 0 for 16.5 without, and is off by 0.005 with this. The
divided offset is no less than the smallest normal float16, 2**-14.

The result keeps its name. Left alone: other types than float32, and smaller factors, whose products may fit.
"""

from __future__ import annotations

import math

from onnx import NodeProto

from pipeline.graph.ir.index import GraphIndex, is_float32, is_op
from pipeline.graph.ir.node_builder import Additions, each_node

_LARGEST = 65504.0
_ROOM = 2.0**14


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Divide under a Log of such a sum."""
    sum_ = _sum(added.index, node)
    if sum_ is None:
        return False
    value, factor, offset = sum_
    divisor = 2.0 ** math.floor(math.log2(min(factor, offset * _ROOM)))
    if divisor > 1:
        _write(added, node.output[0], value, (factor / divisor, offset / divisor, math.log(divisor)))
    return divisor > 1


def _sum(index: GraphIndex, node: NodeProto) -> tuple[str, float, float] | None:
    """`x`, `k` and `o` of such a Log."""
    if not is_op(node, "Log") or not is_float32(index, node.output[0]):
        return None
    product, offset = _with_number(index, index.maker(node.input[0], "Add"))
    value, factor = _with_number(index, index.maker(product, "Mul") if product else None)
    return (value, factor, offset) if factor > _LARGEST and offset > 0 else None


def _with_number(index: GraphIndex, node: NodeProto | None) -> tuple[str, float]:
    """The value that a node joins with a finite constant number, and that number; "" and 0 if it does not."""
    if node is not None:
        for value, other in (tuple(node.input), tuple(reversed(node.input))):
            number = index.scalar(other) if other in index.initializers else None
            if number is not None and math.isfinite(number):
                return str(value), number
    return "", 0.0


def _write(added: Additions, result: str, value: str, numbers: tuple[float, float, float]) -> None:
    names = [
        added.number(f"{result}_{name}", number)
        for name, number in zip(("factor", "offset", "log_of_divisor"), numbers, strict=True)
    ]
    product = added.op("Mul", value, names[0], out=f"{result}_product")
    total = added.op("Add", product, names[1], out=f"{result}_sum")
    added.replace("Add", added.op("Log", total, out=f"{result}_divided"), names[2], out=result)


AFTER = {"merge_scales": "two factors in a row become one"}
