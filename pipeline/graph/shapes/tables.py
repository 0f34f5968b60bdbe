"""Which inputs are ids: they look rows up in constant tables, and no row is beyond a table's end."""

from __future__ import annotations

from onnx import ModelProto, NodeProto, TensorProto

from pipeline.contracts.ingest import Table
from pipeline.graph.ir.attributes import integer
from pipeline.graph.ir.index import FLOATS, is_op
from pipeline.graph.ir.ops import KEEPING
from pipeline.graph.ir.traverse import label

_WHOLE = (TensorProto.INT32, TensorProto.INT64)


def tables(model: ModelProto) -> dict[str, Table]:
    """What inputs of integers look up by every element of theirs, by the name of the input; the smallest table counts.

    An id that is computed, as one that a Where guards, may be anything; so may one of which only a part is looked up.
    """
    constants = {tensor.name: tensor for tensor in model.graph.initializer if 0 not in tensor.dims}
    given = {value.name: {value.name} for value in model.graph.input if value.type.tensor_type.elem_type in _WHOLE}
    found: dict[str, Table] = {}
    for node in model.graph.node:  # in an order in which what makes a value comes before what reads it
        if is_op(node, "Gather") and (table := constants.get(node.input[0])) is not None:
            rows, floats = table.dims[integer(node, "axis")], table.data_type in FLOATS
            for name in given.get(node.input[1], ()):
                before = found.get(name, Table(rows, (), floats))
                nodes = (*before.nodes, label(node))
                found[name] = Table(min(rows, before.rows), nodes, floats and before.floats)
        elif _keeps_all(node):
            moved = node.input if is_op(node, "Concat") else node.input[:1]
            given[node.output[0]] = {name for value in moved for name in given.get(value, ())}
    return found


def _keeps_all(node: NodeProto) -> bool:
    """Whether a node gives every element of its input, as a whole number."""
    if is_op(node, "Cast"):
        return integer(node, "to") in _WHOLE
    return is_op(node, *KEEPING, "Concat", "Tile")
