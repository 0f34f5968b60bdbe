"""Gives a QDQ model with weights in blocks one whose weights have a scale for each channel, for proofs of all else.

QNN's emulator (2.51) takes 0.2 microseconds for each weight in blocks in every run, a hundred times what a product of
one row takes otherwise. What a program does with a graph's inputs and outputs does not depend on it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, helper

from pipeline.graph.files.blob_writer import BlobWriter
from pipeline.graph.files.model_file import MODEL, WEIGHTS, load_graph, save_graph, tensor_pieces
from pipeline.graph.ir.attributes import integer
from pipeline.graph.ir.index import GraphIndex, is_op
from pipeline.graph.quantization.qdq.qdq_model import dequantized_constant

_MOST = 127


def _in_blocks(model: ModelProto) -> list[NodeProto]:
    """The nodes that dequantize a weight, of two dims or more, with scales in blocks."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    return [
        node
        for node in model.graph.node
        if is_op(node, "DequantizeLinear")
        and integer(node, "block_size", 0)
        and node.input[0] in constants
        and len(constants[node.input[0]].dims) > 1
    ]


def count_in_blocks(model: ModelProto) -> int:
    """How many weights are read with scales in blocks, each as often as it is."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    return sum(int(np.prod(constants[node.input[0]].dims)) for node in _in_blocks(model))


def write_by_channel(source: Path, folder: Path) -> Path:
    """Write the QDQ model `source` into `folder` with its weights in blocks rounded again, and return its path.

    Each becomes int8 with the nearest scale that holds its largest number, one for each place along the axis that is
    not in blocks; zero points are 0.
    """
    model = load_graph(source)
    index = GraphIndex(model, source.parent)
    nodes = _in_blocks(model)
    replaced = {name for node in nodes for name in node.input}
    with BlobWriter(folder / WEIGHTS) as blob:
        kept = [
            blob.tensor(tensor.name, tensor_pieces(tensor, source.parent))
            for tensor in model.graph.initializer
            if tensor.name not in replaced
        ]
        made = []
        for node in nodes:
            weight = dequantized_constant(index, node.output[0])
            blocked = integer(node, "axis", 1) % weight.ndim
            channel = 1 if blocked == 0 else 0
            others = tuple(axis for axis in range(weight.ndim) if axis != channel)
            largest = np.abs(weight).max(axis=others, keepdims=True)
            scale = np.where(largest > 0, largest / _MOST, 1).astype(np.float32)
            name = node.output[0]
            arrays = {
                f"{name}/integers": np.rint(weight / scale).astype(np.int8),
                f"{name}/scale": scale.reshape(-1),
                f"{name}/zero_point": np.zeros(scale.size, np.int8),
            }
            made += [blob.tensor(*each) for each in arrays.items()]
            node.CopyFrom(helper.make_node(node.op_type, [*arrays], [name], node.name, axis=channel))
    del model.graph.initializer[:]
    model.graph.initializer.extend([*kept, *made])
    save_graph(model, folder / MODEL)
    return folder / MODEL
