"""Ends a model before its own outputs, at values that the config names.

What an application does better by itself, or HTP can't do, stands at the end of many models: non-maximum suppression,
lists of variable length, texts of labels.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, shape_inference

from pipeline.errors import ConfigError
from pipeline.graph.ir.inference import REFUSALS
from pipeline.graph.ir.traverse import live_nodes, reads
from pipeline.plain_text import did_you_mean


def cut(model: ModelProto, ends: Sequence[str]) -> tuple[str, ...]:
    """Make `ends` the outputs of `model`, in their order, in place; nodes and inputs that only its own needed go.

    Returns the names of these inputs.

    Raises:
        ConfigError: no node outside of branches and loops makes a value of that name.
    """
    graph = model.graph
    made = {name for node in graph.node for name in node.output if name}
    for name in ends:
        if name not in made:
            raise ConfigError(
                f"the model makes no value {name!r}{did_you_mean(name, made)}",
                where="cut",
                why="a component ends at values that its nodes make, and not inside of branches or loops",
                remedy="name values as the ONNX file does; a viewer as https://netron.app shows them",
            )
    types = _types(model, ends)
    read_before = {name for node in graph.node for name in reads(node)}
    kept = [NodeProto.FromString(node.SerializeToString()) for node in live_nodes(graph.node, ends)]
    read = {name for node in kept for name in reads(node)}
    inputs = [value for value in graph.input if value.name in read or value.name not in read_before]
    outputs = [types[name] for name in ends]
    gone = tuple(value.name for value in graph.input if value.name not in {value.name for value in inputs})
    for field, values in (("node", kept), ("input", inputs), ("output", outputs)):
        copies = [type(value).FromString(value.SerializeToString()) for value in values]
        graph.ClearField(field)
        getattr(graph, field).extend(copies)
    return gone


def _types(model: ModelProto, names: Collection[str]) -> dict[str, ValueInfoProto]:
    """Declarations of these values: the file's own, what ONNX infers, or float32 of any shape."""
    graph = model.graph
    found = {value.name: value for value in (*graph.value_info, *graph.output) if value.name in names}
    if any(name not in found for name in names):
        try:
            inferred = shape_inference.infer_shapes(model).graph
        except REFUSALS:
            inferred = graph
        found = {value.name: value for value in inferred.value_info if value.name in names} | found
    unknown = helper.make_tensor_value_info
    return {name: found.get(name) or unknown(name, TensorProto.FLOAT, None) for name in names}
