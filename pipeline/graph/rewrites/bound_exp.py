"""Keep what is very negative from Exp.

Before::

    Exp(x)

After::

    Exp(Max(x, -60))

HTP (2.51, emulated) takes a float16 Exp wrongly below -88: of -90 it makes -131008, of -300 +131008, of -706 16. The
filler of a mask in front of a softmax that is written out gets there. Exp(-60) is 1e-26, zero in float16 and in every
encoding. Of x in -300 to 2, SQNR of the context against the QDQ model is 88.4 dB without and 85.4 with the Max in
uint16, and -101.8 and 73.4 in float16.

The result keeps its name. Left alone: an x that a Max or Clip bounds already; types other than float32; five dims, in
which HTP has no Max.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from pipeline.graph.ir.index import GraphIndex, is_op, substitute
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.node_builder import Additions

NAME = "bound_exp"

_BOUND = -60.0
_RIGHT_ABOVE = -85.0
_MOST_DIMS = 4


def apply(model: ModelProto, folder: Path) -> int:
    """Bound the source of every Exp; returns their number."""
    index = GraphIndex(model, folder)
    added = Additions(index)
    found = [node for node in model.graph.node if _matches(index, node)]
    for node in found:
        result = node.output[0]
        bound = added.constant(f"{result}_least", np.array(_BOUND, np.float32))
        added.replace("Exp", added.op("Max", node.input[0], bound, out=f"{result}_bounded"), out=result)
    if found:
        substitute(model, found, added.finish())
    return len(found)


def _matches(index: GraphIndex, node: NodeProto) -> bool:
    kind = index.types.get(node.output[0]) if is_op(node, "Exp") else None
    if kind is None or kind.tensor_type.elem_type != TensorProto.FLOAT or len(shape_of(kind)) > _MOST_DIMS:
        return False
    maker = index.maker(node.input[0], "Max", "Clip")
    if maker is None:
        return True
    bounds = maker.input if maker.op_type == "Max" else maker.input[1:2]
    least = [index.scalar(name) for name in bounds if name in index.initializers]
    return not any(value is not None and value >= _RIGHT_ABOVE for value in least)


AFTER = {
    "decompose_pow": "powers of constants become an Exp",
    "decompose_log_sums": "LogSoftmax becomes an Exp",
}
"""What runs before, and why."""
