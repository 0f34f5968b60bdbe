"""Write activations that QNN doesn't have with operators that it has.

Before and after::

    Celu(x)          Mul(Elu(Mul(x, 1 / alpha)), alpha)      or Elu(x) where alpha is 1
    Softsign(x)      Div(x, Add(Abs(x), 1))
    Shrink(x)        Sub(x, Clip(x, -lambd, lambd))                       where bias is lambd
                     Where(Greater(Abs(x), lambd), Sub(x, Mul(Sign(x), bias)), 0)

QNN EP 2.7 leaves each of them to the CPU, a partition more each time: 5 for a small convolutional net with Celu, now 1,
at the same SQNR. Results keep their names. Left alone: types other than float32, and a Shrink with a negative lambd.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from pipeline.graph.ir.index import GraphIndex, is_op, substitute
from pipeline.graph.ir.node_builder import Additions

NAME = "decompose_activations"


def apply(model: ModelProto, folder: Path) -> int:
    """Replace every Celu, Softsign and Shrink; returns their number."""
    index = GraphIndex(model, folder)
    added = Additions(index)
    found = [node for node in model.graph.node if _matches(index, node)]
    for node in found:
        _WRITERS[node.op_type](added, node)
    if found:
        substitute(model, found, added.finish())
    return len(found)


def _matches(index: GraphIndex, node: NodeProto) -> bool:
    return (
        is_op(node, *_WRITERS)
        and index.types[node.output[0]].tensor_type.elem_type == TensorProto.FLOAT
        and (node.op_type != "Shrink" or _number(node, "lambd", 0.5) >= 0)
    )


def _number(node: NodeProto, name: str, default: float) -> float:
    return next((float(attribute.f) for attribute in node.attribute if attribute.name == name), default)


def _celu(added: Additions, node: NodeProto) -> None:
    source, result = node.input[0], node.output[0]
    alpha = _number(node, "alpha", 1.0)
    if alpha == 1:
        added.replace("Elu", source, out=result)
        return
    inverse = added.constant(f"{result}_inverse", np.array(1 / alpha, np.float32))
    elu = added.op("Elu", added.op("Mul", source, inverse, out=f"{result}_scaled"), out=f"{result}_elu")
    added.replace("Mul", elu, added.constant(f"{result}_alpha", np.array(alpha, np.float32)), out=result)


def _softsign(added: Additions, node: NodeProto) -> None:
    source, result = node.input[0], node.output[0]
    size = added.op("Abs", source, out=f"{result}_size")
    one = added.constant(f"{result}_one", np.array(1, np.float32))
    added.replace("Div", source, added.op("Add", size, one, out=f"{result}_divisor"), out=result)


def _shrink(added: Additions, node: NodeProto) -> None:
    source, result = node.input[0], node.output[0]
    lambd, bias = _number(node, "lambd", 0.5), _number(node, "bias", 0.0)

    def number(name: str, value: float) -> str:
        return added.constant(f"{result}_{name}", np.array(value, np.float32))

    high = number("lambd", lambd)
    if bias == lambd:
        middle = added.op("Clip", source, number("low", -lambd), high, out=f"{result}_middle")
        added.replace("Sub", source, middle, out=result)
        return
    kept = added.op("Greater", added.op("Abs", source, out=f"{result}_size"), high, out=f"{result}_kept")
    moved = source
    if bias:
        sign = added.op("Sign", source, out=f"{result}_sign")
        shift = added.op("Mul", sign, number("bias", bias), out=f"{result}_shift")
        moved = added.op("Sub", source, shift, out=f"{result}_moved")
    added.replace("Where", kept, moved, number("zero", 0), out=result)


_WRITERS: Mapping[str, Callable[[Additions, NodeProto], None]] = {
    "Celu": _celu,
    "Softsign": _softsign,
    "Shrink": _shrink,
}
