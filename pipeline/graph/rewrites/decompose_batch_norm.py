"""Write a BatchNormalization with fixed statistics as the Mul and Add that it is.

Before::

    BatchNormalization(x, gamma, beta, mean, variance)          all but x constants, [channels]

After::

    Add(Mul(x, factor), offset)          factor = gamma / sqrt(variance + epsilon), offset = beta - mean * factor

QNN EP 2.7 makes factor and offset itself, from constants that were quantized one by one, and quantizes them again. Now
and then the largest offset then wraps around: that one channel comes out wrong on the chip (-2 dB of SQNR against 79
for the others, with offsets from -1 to 1 in 16 even steps), while the QDQ model on the CPU is right. The result keeps
its name. Left alone: training mode, and statistics that are computed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper

from pipeline.graph.ir.attributes import real
from pipeline.graph.ir.index import GraphIndex, LazyIndex, is_op, set_nodes
from pipeline.graph.ir.inference import shape_of

_EPSILON = 1e-5
"""ONNX's default."""


def apply(model: ModelProto, folder: Path) -> int:
    """Split every BatchNormalization whose statistics are constants; returns their number."""
    index = LazyIndex(model, folder)
    nodes: list[NodeProto] = []
    split = 0
    for node in model.graph.node:
        given = node.input[1:] if is_op(node, "BatchNormalization") else []  # of other nodes, weights are large
        known = [parameter for parameter in map(index.constant, given) if parameter is not None]
        if len(known) < 4 or len(node.output) > 1:
            nodes.append(node)
            continue
        nodes += _split(index, node, known)
        split += 1
    if split:
        set_nodes(model, nodes)
    return split


def _split(index: GraphIndex, node: NodeProto, parameters: list[NDArray[Any]]) -> list[NodeProto]:
    """The two nodes, whose constants and whose value in between are added to the model."""
    gamma, beta, mean, variance = (parameter.astype(np.float64) for parameter in parameters)
    epsilon = real(node, "epsilon", _EPSILON)
    factor = gamma / np.sqrt(variance + epsilon)
    source, result = node.input[0], node.output[0]
    names = [index.unused(f"{result}_{part}") for part in ("factor", "offset", "scaled")]
    per_channel = (-1, *(1,) * (len(shape_of(index.types[source])) - 2))
    for name, values in zip(names, (factor, beta - mean * factor), strict=False):
        array = values.astype(parameters[0].dtype).reshape(per_channel)
        index.model.graph.initializer.append(numpy_helper.from_array(array, name))
    index.model.graph.value_info.append(ValueInfoProto(name=names[2], type=index.types[result]))
    stem = node.name or result
    return [
        helper.make_node("Mul", [source, names[0]], [names[2]], f"{stem}_mul"),
        helper.make_node("Add", [names[2], names[1]], [result], node.name),
    ]
