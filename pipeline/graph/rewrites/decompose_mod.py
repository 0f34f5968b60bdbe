"""Write the remainder of integers with a quotient.

Before (n constant and positive)::

    Mod(x, n)

After::

    rest = Sub(x, Mul(Div(x, n), n))
    Add(rest, Mul(Cast(Less(rest, 0)), n))

HTP (2.51, emulated) computes Mod in float16, wrongly above 2048 (4097 mod 3 is 0), and Div of integers rightly, but for
one thing: by a constant power of two it rounds a negative quotient down instead of to zero. The second line makes the
remainder right for either.

The result keeps its name. Left alone: floats; `fmod`, whose remainder has the sign of x; divisors that are computed, or
not all positive; types other than int32 and int64.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper

from pipeline.graph.ir.index import GraphIndex, is_op, substitute
from pipeline.graph.ir.node_builder import Additions

NAME = "decompose_mod"

_KINDS = (TensorProto.INT32, TensorProto.INT64)


def apply(model: ModelProto, folder: Path) -> int:
    """Replace every such Mod; returns their number."""
    index = GraphIndex(model, folder)
    added = Additions(index)
    found = [node for node in model.graph.node if _matches(index, node)]
    for node in found:
        _replace(index, added, node)
    if found:
        substitute(model, found, added.finish())
    return len(found)


def _matches(index: GraphIndex, node: NodeProto) -> bool:
    if not is_op(node, "Mod") or any(attribute.name == "fmod" and attribute.i for attribute in node.attribute):
        return False
    divisor = index.constant(node.input[1])
    return (
        index.types[node.output[0]].tensor_type.elem_type in _KINDS
        and divisor is not None
        and divisor.size > 0
        and bool((divisor > 0).all())
    )


def _replace(index: GraphIndex, added: Additions, node: NodeProto) -> None:
    x, n, result = node.input[0], node.input[1], node.output[0]
    kind = index.types[result].tensor_type.elem_type
    zero = added.constant(f"{result}_zero", np.zeros((), helper.tensor_dtype_to_np_dtype(kind)))
    whole = added.op("Mul", added.op("Div", x, n, out=f"{result}_quotient"), n, out=f"{result}_whole")
    rest = added.op("Sub", x, whole, out=f"{result}_rest")
    below = added.op("Cast", added.op("Less", rest, zero, out=f"{result}_is_below"), out=f"{result}_below", to=kind)
    added.replace("Add", rest, added.op("Mul", below, n, out=f"{result}_missing"), out=result)
