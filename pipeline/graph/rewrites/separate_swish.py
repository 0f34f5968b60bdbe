"""Keep the Sigmoid of a Swish apart from its product.

Before::

    Mul(x, Sigmoid(x))

After::

    Mul(x, Max(Sigmoid(x), 0))

which is the same, as a Sigmoid is never less. HTP (2.51, emulated) computes the pair as one, in 16 bits now and then
wrongly. Behind a convolution it is so over images of 9 to 12 rows, whatever the columns and channels (3 to 10 dB of
SQNR against the QDQ model; 74 dB apart). Elsewhere it depends on the graph around: in a small MobileViT each Swish is
right as long as the graph ends with it, and the whole comes to 4 dB; 27 with all of them apart, which is what the QDQ
model has. An operator more for each is the price.

The product keeps its name. Left alone: types other than float32, and factors of other values.
"""

from __future__ import annotations

from onnx import NodeProto

from pipeline.graph.ir.index import is_float32, is_op
from pipeline.graph.ir.node_builder import Additions, each_node


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Separate the products of a Swish from this Sigmoid."""
    if not is_op(node, "Sigmoid") or not is_float32(added.index, node.output[0]):
        return False
    result = node.output[0]
    products = [reader for reader in added.index.readers.get(result, []) if _is_swish(reader, node)]
    if not products:
        return False
    bound = added.op("Max", result, added.number(f"{result}_least", 0), out=f"{result}_bounded")
    for product in products:
        product.input[list(product.input).index(result)] = bound
    return True


def _is_swish(product: NodeProto, sigmoid: NodeProto) -> bool:
    return is_op(product, "Mul") and set(product.input) == {sigmoid.input[0], sigmoid.output[0]}
