"""Write the negative and the sign of integers with operators that QNN takes.

Before, of int32 or int64::

    Neg(x)
    Sign(x)

After::

    Sub(0, x)
    Sub(Cast(Greater(x, 0)), Cast(Less(x, 0)))

QNN (EP 2.7) leaves both to the CPU; of floats it takes them. The result keeps its name.
"""

from __future__ import annotations

from onnx import NodeProto, TensorProto, helper

from pipeline.graph.ir.index import element_type, is_op
from pipeline.graph.ir.node_builder import Additions, each_node

_KINDS = (TensorProto.INT32, TensorProto.INT64)


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace a Neg or Sign of integers."""
    kind = element_type(added.index, node.output[0]) if is_op(node, "Neg", "Sign") else None
    if kind not in _KINDS:
        return False
    given, result = node.input[0], node.output[0]
    zero = added.number(f"{result}_zero", 0, helper.tensor_dtype_to_np_dtype(kind))
    if is_op(node, "Neg"):
        added.replace("Sub", zero, given, out=result)
        return True
    above, below = (
        added.op("Cast", added.op(op, given, zero, out=f"{result}_is_{name}"), out=f"{result}_{name}", to=kind)
        for op, name in (("Greater", "above"), ("Less", "below"))
    )
    added.replace("Sub", above, below, out=result)
    return True
