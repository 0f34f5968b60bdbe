"""Reduce only axes that have more than one element.

Before::

    ReduceSum(x, axes=[1, 2])                      with x of [1, 32, 1]

After (with ``keepdims``, no Reshape is needed)::

    Reshape(ReduceSum(x, axes=[1]))

HTP gives 0 for a ReduceMax over a last axis of one element together with others, and for a ReduceSum of what was
converted from 8 to 16 bits: 0 dB of SQNR where this gives 94 (QNN EP 2.7, emulator, HTP v73 to v79). The duration of a
TTS text encoder is such a sum.

Left alone: axes that are computed, and reductions over axes of one element only.
"""

from __future__ import annotations

from onnx import NodeProto

from pipeline.graph.ir.attributes import integer
from pipeline.graph.ir.index import is_float, is_op
from pipeline.graph.ir.node_builder import Additions, each_node
from pipeline.graph.ir.reductions import axes_are_an_input, reduced_axes

_REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin")


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Rewrite a reduction over axes of one element and others."""
    index = added.index
    if not is_op(node, *_REDUCTIONS) or node.input[0] not in index.types or not is_float(index, node.input[0]):
        return False
    dims = added.shape(node.input[0])
    axes = reduced_axes(index, node) or ()
    real = [axis for axis in axes if dims[axis] != 1]
    if not real or len(real) == len(axes):
        return False
    _reduce(added, node, real)
    return True


def _reduce(added: Additions, node: NodeProto, axes: list[int]) -> None:
    """Add the node that reduces `axes`, and what gives its result the shape that it had."""
    result = node.output[0]
    keeps = integer(node, "keepdims", 1)
    operands: list[str] = [node.input[0]]
    attributes: dict[str, int | list[int]] = {"keepdims": keeps}
    if axes_are_an_input(added.index.model, node):
        operands.append(added.integers(f"{result}_axes", *axes))
    else:
        attributes["axes"] = axes
    if keeps:
        added.replace(node.op_type, *operands, out=result, **attributes)
    else:
        reduced = added.op(node.op_type, *operands, out=f"{result}_reduced", name=node.name, **attributes)
        shape = added.integers(f"{result}_shape", *added.shape(result))
        added.replace("Reshape", reduced, shape, out=result)
