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

from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from pipeline.graph.ir.index import GraphIndex, is_op, sort_nodes
from pipeline.graph.ir.node_builder import Additions

NAME = "separate_swish"


def apply(model: ModelProto, folder: Path) -> int:
    """Separate every Swish; returns their number."""
    index = GraphIndex(model, folder)
    added = Additions(index)
    found = [node for node in model.graph.node if _matches(index, node)]
    for node in found:
        result = node.output[0]
        least = added.constant(f"{result}_least", np.array(0, np.float32))
        bound = added.op("Max", result, least, out=f"{result}_bounded")
        for reader in index.readers[result]:
            if _is_swish(reader, node):
                reader.input[list(reader.input).index(result)] = bound
    if found:
        model.graph.node.extend(added.finish())
        sort_nodes(model)
    return len(found)


def _matches(index: GraphIndex, node: NodeProto) -> bool:
    if not is_op(node, "Sigmoid") or index.types[node.output[0]].tensor_type.elem_type != TensorProto.FLOAT:
        return False
    return any(_is_swish(reader, node) for reader in index.readers.get(node.output[0], []))


def _is_swish(product: NodeProto, sigmoid: NodeProto) -> bool:
    return is_op(product, "Mul") and set(product.input) == {sigmoid.input[0], sigmoid.output[0]}
