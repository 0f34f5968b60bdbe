"""Compares what a context model and its binary say of the same inputs and outputs: names, and encodings of floats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from pipeline.qnn.format.context_binary import GraphInfo
from pipeline.qnn.format.context_model import partition_name, partitions, tensor_name
from pipeline.qnn.format.graph_io import BinaryEncoding, EdgeTensor

_FOREIGN = (TensorProto.DOUBLE, TensorProto.INT8, TensorProto.INT16, TensorProto.UINT16)
"""Types of inputs and outputs that HTP casts neither from nor to."""


def contradictions(model: ModelProto, graphs: Mapping[str, GraphInfo]) -> Iterator[str]:
    """Each way in which a context model contradicts the graphs of its binaries (by name), in a sentence.

    Programs that load the binary without the context model know only what the binary says.
    """
    converted = _encodings(model)
    for node in partitions(model):
        name = partition_name(node)
        if name not in graphs:
            yield f"graph {name!r} is in no binary"
            continue
        graph = graphs[name]
        for kind, values, tensors in (("input", node.input, graph.inputs), ("output", node.output, graph.outputs)):
            named = {tensor.name: tensor for tensor in tensors}
            wanted = {tensor_name(node, value): value for value in values}
            if named.keys() != wanted.keys():
                yield f"graph {name!r} has the {kind}s {_list(named)}, the context model {_list(wanted)}"
            for tensor_in_binary, value in wanted.items():
                if value in converted and tensor_in_binary in named:
                    yield from _other(named[tensor_in_binary], converted[value])


def is_edge(node: NodeProto, model: ModelProto) -> bool:
    """Whether a node of a context model only converts the encoding or the type of an input or output.

    Binaries have no float64, int8 (but encoded), int16 and uint16 of numbers, so their Casts are the CPU's wherever
    they stand.
    """
    foreign = {
        value.name
        for value in (*model.graph.input, *model.graph.output)
        if value.type.tensor_type.elem_type in _FOREIGN
    }
    if node.op_type == "Cast":
        return node.input[0] in foreign or node.output[0] in foreign
    if node.op_type == "QuantizeLinear":
        return any(value.name == node.input[0] for value in model.graph.input)
    return node.op_type == "DequantizeLinear" and any(value.name == node.output[0] for value in model.graph.output)


def paired(node: NodeProto, values: Sequence[str], tensors: Sequence[EdgeTensor]) -> list[tuple[str, EdgeTensor]]:
    """The inputs or outputs of an EPContext node, each with the tensor of the binary that it is."""
    named = {tensor.name: tensor for tensor in tensors}
    return [(value, named[name]) for value in values if (name := tensor_name(node, value)) in named]


def _encodings(model: ModelProto) -> dict[str, BinaryEncoding]:
    """The encodings that QuantizeLinear and DequantizeLinear of a context model give to integers, by their names."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    found = {}
    for node in model.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            integers = node.output[0] if node.op_type == "QuantizeLinear" else node.input[0]
            scale, zero_point = (numpy_helper.to_array(constants[name]) for name in node.input[1:3])
            if scale.size == 1:
                found[integers] = BinaryEncoding(float(scale.item()), int(zero_point.item()))
    return found


def _other(tensor: EdgeTensor, told: BinaryEncoding) -> Iterator[str]:
    if tensor.encoding != told:
        yield f"{tensor.name!r} is encoded with {told} in the context model, with {tensor.encoding} in the binary"


def _list(names: Mapping[str, object]) -> str:
    return ", ".join(sorted(names))
