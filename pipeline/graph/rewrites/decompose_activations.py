"""Write activations that QNN doesn't have with operators that it has.

Before and after::

    Celu(x)          Mul(Elu(Mul(x, 1 / alpha)), alpha)      or Elu(x) where alpha is 1
    Softsign(x)      Div(x, Add(Abs(x), 1))

QNN EP 2.7 leaves both to the CPU, a partition more each time: 5 for a small convolutional net with Celu, now 1, at the
same SQNR. Results keep their names. Left alone: types other than float32.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from pipeline.graph.ir.index import GraphIndex, is_op, substitute
from pipeline.graph.ir.node_builder import Additions

NAME = "decompose_activations"


def apply(model: ModelProto, folder: Path) -> int:
    """Replace every Celu and Softsign; returns their number."""
    index = GraphIndex(model, folder)
    added = Additions(index)
    found = [node for node in model.graph.node if is_op(node, "Celu", "Softsign") and _is_float(index, node)]
    for node in found:
        if node.op_type == "Celu":
            _celu(added, node)
        else:
            _softsign(added, node)
    if found:
        substitute(model, found, added.finish())
    return len(found)


def _is_float(index: GraphIndex, node: NodeProto) -> bool:
    return index.types[node.output[0]].tensor_type.elem_type == TensorProto.FLOAT


def _celu(added: Additions, node: NodeProto) -> None:
    source, result = node.input[0], node.output[0]
    alpha = next((attribute.f for attribute in node.attribute if attribute.name == "alpha"), 1.0)
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
