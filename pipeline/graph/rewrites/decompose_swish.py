"""Write Swish as the Sigmoid and Mul that it is.

Before::

    Swish(x)                    of ONNX from opset 24

After::

    Mul(x, Sigmoid(x))          or Sigmoid(Mul(x, alpha))

QNN EP 2.7 takes a quantized Swish and computes something else (uint16, [1, 8, 16]: -6 dB of SQNR; as Mul and Sigmoid
46 dB), though right in float16. The result keeps its name. Left alone: types other than float32.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from pipeline.graph.ir.index import GraphIndex, is_op, substitute
from pipeline.graph.ir.node_builder import Additions

NAME = "decompose_swish"


def apply(model: ModelProto, folder: Path) -> int:
    """Replace every Swish; returns their number."""
    index = GraphIndex(model, folder)
    added = Additions(index)
    found = [node for node in model.graph.node if is_op(node, "Swish") and _is_float(index, node)]
    for node in found:
        source, result = node.input[0], node.output[0]
        alpha = next((attribute.f for attribute in node.attribute if attribute.name == "alpha"), 1.0)
        scaled = source
        if alpha != 1:
            factor = added.constant(f"{result}_alpha", np.array(alpha, np.float32))
            scaled = added.op("Mul", source, factor, out=f"{result}_scaled")
        added.replace("Mul", source, added.op("Sigmoid", scaled, out=f"{result}_sigmoid"), out=result)
    if found:
        substitute(model, found, added.finish())
    return len(found)


def _is_float(index: GraphIndex, node: NodeProto) -> bool:
    return index.types[node.output[0]].tensor_type.elem_type == TensorProto.FLOAT
