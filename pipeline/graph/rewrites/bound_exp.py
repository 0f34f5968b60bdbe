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

from onnx import NodeProto

from pipeline.graph.ir.index import GraphIndex, is_float32, is_op
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.node_builder import Additions, each_node

_BOUND = -60.0
_RIGHT_ABOVE = -85.0
_MOST_DIMS = 4


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Bound the source of an Exp."""
    if not _matches(added.index, node):
        return False
    result = node.output[0]
    bound = added.number(f"{result}_least", _BOUND)
    added.replace("Exp", added.op("Max", node.input[0], bound, out=f"{result}_bounded"), out=result)
    return True


def _matches(index: GraphIndex, node: NodeProto) -> bool:
    if not is_op(node, "Exp") or not is_float32(index, node.output[0]):
        return False
    if len(shape_of(index.types[node.output[0]])) > _MOST_DIMS:
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
