"""Write Swish as the Sigmoid and Mul that it is.

Before::

    Swish(x)                    of ONNX from opset 24

After::

    Mul(x, Sigmoid(x))          or Sigmoid(Mul(x, alpha))

QNN EP 2.7 takes a quantized Swish and computes something else (uint16, [1, 8, 16]: -6 dB of SQNR; as Mul and Sigmoid
46 dB), though right in float16. The result keeps its name. Left alone: types other than float32.
"""

from __future__ import annotations

from onnx import NodeProto

from pipeline.graph.ir.attributes import real
from pipeline.graph.ir.index import is_float32, is_op
from pipeline.graph.ir.node_builder import Additions, each_node


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace a Swish."""
    if not is_op(node, "Swish") or not is_float32(added.index, node.output[0]):
        return False
    source, result = node.input[0], node.output[0]
    alpha = real(node, "alpha", 1.0)
    scaled = source
    if alpha != 1:
        scaled = added.op("Mul", source, added.number(f"{result}_alpha", alpha), out=f"{result}_scaled")
    added.replace("Mul", source, added.op("Sigmoid", scaled, out=f"{result}_sigmoid"), out=result)
    return True
