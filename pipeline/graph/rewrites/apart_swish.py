"""Keep the Sigmoid of a Swish apart from its product, over images of the sizes where HTP gets the two wrong.

Before::

    Mul(x, Sigmoid(x))

After::

    Mul(x, Max(Sigmoid(x), 0))

which is the same, as a Sigmoid is never less. HTP (2.51, emulated) computes the pair as one, and over images of 9 to 12
rows in 16 bits wrongly: 3 to 10 dB of SQNR against the QDQ model, whatever the columns and channels; kept apart, 74 dB.
All of 1 to 8 and 13 to 24 rows are right, as are sequences.

The product keeps its name. Left alone: all other shapes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from pipeline.graph.additions import Additions
from pipeline.graph.index import GraphIndex, is_op, sort_nodes
from pipeline.graph.inference import shape_of

NAME = "apart_swish"

_ROWS = range(9, 13)


def apply(model: ModelProto, folder: Path) -> int:
    """Separate every Swish of such a shape; returns their number."""
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
    dims = shape_of(index.types[node.output[0]])
    # Rows come first or second, as convolutions nearby have channels last or not.
    if len(dims) != 4 or not any(rows in _ROWS for rows in dims[1:3]):
        return False
    return any(_is_swish(reader, node) for reader in index.readers.get(node.output[0], []))


def _is_swish(product: NodeProto, sigmoid: NodeProto) -> bool:
    return is_op(product, "Mul") and set(product.input) == {sigmoid.input[0], sigmoid.output[0]}
