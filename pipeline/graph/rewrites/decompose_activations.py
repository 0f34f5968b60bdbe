"""Write activations that QNN doesn't have with operators that it has.

Before and after::

    Celu(x)          Mul(Elu(Mul(x, 1 / alpha)), alpha)      or Elu(x) where alpha is 1
    Softsign(x)      Div(x, Add(Abs(x), 1))

QNN EP 2.7 leaves both to the CPU, a partition more each time: 5 for a small convolutional net with Celu, now 1, at the
same SQNR. Results keep their names. Left alone: types other than float32.
"""

from __future__ import annotations

from onnx import NodeProto

from pipeline.graph.ir.index import is_float32, is_op
from pipeline.graph.ir.node_builder import Additions, each_node


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace a Celu or Softsign."""
    if not is_op(node, "Celu", "Softsign") or not is_float32(added.index, node.output[0]):
        return False
    if node.op_type == "Celu":
        _celu(added, node)
    else:
        _softsign(added, node)
    return True


def _celu(added: Additions, node: NodeProto) -> None:
    source, result = node.input[0], node.output[0]
    alpha = next((attribute.f for attribute in node.attribute if attribute.name == "alpha"), 1.0)
    if alpha == 1:
        added.replace("Elu", source, out=result)
        return
    inverse = added.number(f"{result}_inverse", 1 / alpha)
    elu = added.op("Elu", added.op("Mul", source, inverse, out=f"{result}_scaled"), out=f"{result}_elu")
    added.replace("Mul", elu, added.number(f"{result}_alpha", alpha), out=result)


def _softsign(added: Additions, node: NodeProto) -> None:
    source, result = node.input[0], node.output[0]
    size = added.op("Abs", source, out=f"{result}_size")
    divisor = added.op("Add", size, added.number(f"{result}_one", 1), out=f"{result}_divisor")
    added.replace("Div", source, divisor, out=result)
