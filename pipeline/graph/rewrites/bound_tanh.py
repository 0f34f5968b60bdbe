"""Keep a Tanh apart from the product it goes into, in the shapes where HTP computes the two as one and gets it wrong.

Before::

    Mul(Tanh(a), b)

After::

    Mul(Max(Tanh(a), -1), b)

which is the same, as a Tanh is never less. In 16 bits HTP (2.51, all architectures, emulated) computes only the first
two places of Tanh and Mul over 16 places ([1, 16, channels], or [1, channels, 16] of a convolution; 15, 17 and 32 are
right), and nothing of Tanh and Mul or Add where Tanh has one channel and the result many: -4 dB of SQNR against 83. A
bucket of 16, with a gate as WaveNet or an activation as Mish has it, meets that. Between the two, what moves data or
is a Relu doesn't help, nor does a Clip to -1..1, which falls away.

The product keeps its name. Left alone: all other shapes.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from pipeline.graph.additions import Additions
from pipeline.graph.index import GraphIndex, is_op, sort_nodes
from pipeline.graph.inference import shape_of

NAME = "bound_tanh"

_PLACES = 16
_PASSES = ("Flatten", "Identity", "Relu", "Reshape", "Squeeze", "Transpose", "Unsqueeze")


def apply(model: ModelProto, folder: Path) -> int:
    """Bound every Tanh that such a product follows; returns their number."""
    index = GraphIndex(model, folder)
    added = Additions(index)
    bounded = 0
    for node in list(model.graph.node):
        if not _matches(index, node):
            continue
        result = node.output[0]
        least = added.constant(f"{result}_least", np.array(-1, np.float32))
        bound = added.op("Max", result, least, out=f"{result}_bounded")
        for reader in index.readers[result]:
            for position, name in enumerate(reader.input):
                if name == result:
                    reader.input[position] = bound
        bounded += 1
    if bounded:
        model.graph.node.extend(added.finish())
        sort_nodes(model)
    return bounded


def _matches(index: GraphIndex, node: NodeProto) -> bool:
    if not is_op(node, "Tanh") or index.types[node.output[0]].tensor_type.elem_type != TensorProto.FLOAT:
        return False
    dims = shape_of(index.types[node.output[0]])
    readers = index.readers.get(node.output[0], [])
    bounded = bool(readers) and all(is_op(reader, "Max") for reader in readers)
    return not bounded and (_one_channel(dims) or _sixteen_places(dims)) and _is_multiplied(index, node.output[0])


def _one_channel(dims: tuple[int, ...]) -> bool:
    return len(dims) > 1 and dims[-1] == 1 and math.prod(dims) > 1


def _sixteen_places(dims: tuple[int, ...]) -> bool:
    """Whether HTP, which has channels last, sees one row of 16 places."""
    one_row = len(dims) > 1 and math.prod(dims[:-2]) == 1 and _PLACES in dims[-2:]  # [1, 16, channels] or turned
    image = len(dims) == 4 and dims[0] == dims[2] == 1 and dims[3] == _PLACES  # [1, channels, 1, 16]
    return one_row or image


def _is_multiplied(index: GraphIndex, name: str) -> bool:
    """Whether a value goes into a Mul or an Add, as it is or moved."""
    readers = index.readers.get(name, [])
    return any(
        is_op(reader, "Mul", "Add") or (is_op(reader, *_PASSES) and _is_multiplied(index, reader.output[0]))
        for reader in readers
    )
