"""Take booleans for what they are, rather than compare them.

Before and after::

    Equal(x, true)       x
    Equal(x, false)      Not(x)
    Equal(x, y)          Not(Xor(x, y))

PyTorch's dynamo exporter writes the first for each ``length // 2`` of integers, and the last for each ``a // b``. QNN
EP 2.7 takes an Equal of booleans, fails to add it, and leaves it to the CPU between two partitions (a small Parakeet:
3 partitions, now 1). A result in place of which x is read is dropped, the others keep their names. Left alone: a
comparison with true that is an output.
"""

from __future__ import annotations

from onnx import NodeProto, TensorProto, helper

from pipeline.graph.ir.index import GraphIndex, element_type, is_op
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.node_builder import Additions, each_node


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace an Equal of booleans."""
    index = added.index
    if not is_op(node, "Equal") or element_type(index, node.input[0]) != TensorProto.BOOL:
        return False
    result = node.output[0]
    compared = _compared(index, node)
    if compared is None:
        added.replace("Not", added.op("Xor", *node.input, out=f"{result}_differ"), out=result)
        return True
    value, with_true = compared
    if not with_true:
        node.CopyFrom(helper.make_node("Not", [value], [result], node.name))
        return True
    if result in index.outputs or result not in index.readers:
        return False
    for reader in index.readers[result]:
        for position, name in enumerate(reader.input):
            if name == result:
                reader.input[position] = value
    return True


def _compared(index: GraphIndex, node: NodeProto) -> tuple[str, bool] | None:
    """The boolean that is compared with one constant throughout, and whether that is true."""
    for value, other in (node.input, reversed(node.input)):
        array = index.constant(other)
        if array is None or array.dtype != bool or array.size == 0 or (array != array.flat[0]).any():
            continue
        kind = index.types.get(value)
        if kind is not None and kind.tensor_type.elem_type == TensorProto.BOOL:
            same = shape_of(kind) == shape_of(index.types[node.output[0]])
            return (value, bool(array.flat[0])) if same else None
    return None
