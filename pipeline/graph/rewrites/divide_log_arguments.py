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
from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from pipeline.graph.ir.index import GraphIndex, is_op, substitute
from pipeline.graph.ir.node_builder import Additions

NAME = "divide_log_arguments"

_LARGEST = 65504.0
_ROOM = 2.0**14


def apply(model: ModelProto, folder: Path) -> int:
    """Divide under every such Log; returns their number."""
    index = GraphIndex(model, folder)
    added = Additions(index)
    found = []
    for node in model.graph.node:
        sum_ = _sum(index, node)
        if sum_ is None:
            continue
        value, factor, offset = sum_
        divisor = 2.0 ** math.floor(math.log2(min(factor, offset * _ROOM)))
        if divisor > 1:
            _write(added, node.output[0], value, (factor / divisor, offset / divisor, math.log(divisor)))
            found.append(node)
    if found:
        substitute(model, found, added.finish())
    return len(found)


def _sum(index: GraphIndex, node: NodeProto) -> tuple[str, float, float] | None:
    """`x`, `k` and `o` of such a Log."""
    kind = index.types.get(node.output[0]) if is_op(node, "Log") else None
    if kind is None or kind.tensor_type.elem_type != TensorProto.FLOAT:
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
        added.constant(f"{result}_{name}", np.array(number, np.float32))
        for name, number in zip(("factor", "offset", "log_of_divisor"), numbers, strict=True)
    ]
    product = added.op("Mul", value, names[0], out=f"{result}_product")
    total = added.op("Add", product, names[1], out=f"{result}_sum")
    added.replace("Add", added.op("Log", total, out=f"{result}_divided"), names[2], out=result)


AFTER = {"merge_scales": "two factors in a row become one"}
"""What runs before, and why."""
