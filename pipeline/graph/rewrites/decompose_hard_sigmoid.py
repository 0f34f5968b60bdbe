"""Write a HardSigmoid behind a ConvTranspose that strides as a product, a sum and a Clip.

Before::

    HardSigmoid(ConvTranspose(x, w))

After::

    Clip(Add(Mul(ConvTranspose(x, w), alpha), beta), 0, 1)

In float16 HTP (2.51, emulated) reads other memory than the ConvTranspose wrote: of 12 columns the first four are right,
the others off by up to 0.5, and operators that are compiled with it go wrong, too. Operators of one input between the
two, such as a Mul by a constant, Relu or Clip, don't help; Sigmoid in its place is right.

The result keeps its name. Left alone: every other HardSigmoid, and types other than float32.
"""

from __future__ import annotations

from onnx import NodeProto

from pipeline.graph.ir.attributes import integers, real
from pipeline.graph.ir.index import GraphIndex, is_float32, is_op
from pipeline.graph.ir.node_builder import Additions, each_node

_ALPHA, _BETA = 0.2, 0.5
"""What ONNX says where a node does not."""


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace a HardSigmoid of what such a ConvTranspose makes."""
    if not _matches(added.index, node):
        return False
    result = node.output[0]
    alpha, beta, zero, one = (
        added.number(f"{result}_{name}", value)
        for name, value in (
            ("alpha", real(node, "alpha", _ALPHA)), ("beta", real(node, "beta", _BETA)), ("zero", 0), ("one", 1)
        )
    )  # fmt: skip
    product = added.op("Mul", node.input[0], alpha, out=f"{result}_product")
    added.replace("Clip", added.op("Add", product, beta, out=f"{result}_sum"), zero, one, out=result)
    return True


def _matches(index: GraphIndex, node: NodeProto) -> bool:
    if not is_op(node, "HardSigmoid") or not is_float32(index, node.output[0]):
        return False
    maker: NodeProto | None = node
    while maker is not None and not is_op(maker, "ConvTranspose"):
        computed = [name for name in maker.input if name and name not in index.initializers]
        maker = index.makers.get(computed[0]) if len(computed) == 1 else None
    return maker is not None and any(stride > 1 for stride in integers(maker, "strides"))
