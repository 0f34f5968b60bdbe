"""Cast to the integers of an output in another shape than they go out in.

Before::

    y = Cast(x, to uint8)                  y an output of the model, any integers

After, where `flat` is one row, or no row where y is one::

    y = Reshape(Cast(Reshape(x, flat), to uint8), dims of y)

Where a picture comes of convolutions, onnxruntime moves the Transpose from their layout behind the Cast, and HTP (2.51)
has none of integers in a quantized graph; of int64 it compiles one that ends with "ORT Tensor data size does not match
QNN tensor data size" at the first run. A Cast to int64 that makes an output by itself is left to the CPU. No Transpose
is moved across a Reshape.

The result keeps its name. Left alone: casts to floats and bool, and integers that something computes with.
"""

from __future__ import annotations

import math

import numpy as np
from onnx import NodeProto, TensorProto

from pipeline.graph.ir.index import GraphIndex, is_float, is_op
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.node_builder import Additions, each_node

_INTEGERS = (TensorProto.UINT8, TensorProto.INT8, TensorProto.INT32, TensorProto.INT64)


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Reshape around a Cast to integers that makes an output."""
    index = added.index
    if not _matches(index, node):
        return False
    result = node.output[0]
    dims = shape_of(index.types[result])
    flat = [math.prod(dims)] if len(dims) == 2 else [1, math.prod(dims)]
    row = added.op("Reshape", node.input[0], added.constant(f"{result}_flat", np.array(flat)), out=f"{result}_row")
    kind = index.types[result].tensor_type.elem_type
    cast = added.op("Cast", row, out=f"{result}_cast", to=kind)
    added.replace("Reshape", cast, added.constant(f"{result}_dims", np.array(dims, np.int64)), out=result)
    return True


def _matches(index: GraphIndex, node: NodeProto) -> bool:
    return (
        is_op(node, "Cast")
        and node.output[0] in index.outputs
        and not index.readers.get(node.output[0])
        and node.input[0] in index.types
        and is_float(index, node.input[0])
        and index.types[node.output[0]].tensor_type.elem_type in _INTEGERS
    )


AFTER = {"decompose_mod": "it writes Casts to integers, which may be outputs"}
