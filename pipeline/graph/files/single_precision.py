"""Models in float16 as models in float32.

Encodings, and the products of scales that a bias is encoded with, need the digits and the range of float32; quantized
as it is, a float16 model is garbage (2 dB of SQNR instead of 40). HTP computes in float16 whatever the model says, so
nothing is lost where it isn't quantized. Inputs and outputs keep their type::

    x, float16 -> Cast -> x_single -> ...  -> y_single -> Cast -> y, float16

Every other value keeps its name. Parts in bfloat16, which neither QNN nor onnxruntime's CPU computes in, become float32
as well; an input or output of it is left as it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from pipeline.graph.ir.traverse import all_graphs, all_nodes, reads, unused

_TYPE_ATTRIBUTES = ("to", "dtype")
_BFLOAT16 = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)
NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


def widen(model: ModelProto) -> None:
    """Let `model`, in normal form, compute in float32 wherever it did in float16, given that its constants are."""
    graph = model.graph
    made = {name for node in graph.node for name in node.output}
    inputs = [value for value in graph.input if _is_half(value)]
    outputs = [value for value in graph.output if _is_half(value) and value.name in made]
    taken = made.union(*(reads(node) for node in graph.node), (value.name for value in graph.input))
    renamed = {value.name: unused(f"{value.name}_single", taken) for value in (*inputs, *outputs)}
    for node in all_nodes(graph):
        _widen_attributes(node)
    for inner in all_graphs(graph):
        _rename(inner, renamed)
        if inner is not graph:
            for value in (*inner.input, *inner.value_info, *inner.output):
                if value.type.tensor_type.elem_type in NARROW:
                    value.type.tensor_type.elem_type = TensorProto.FLOAT
    before = [cast_node(value.name, renamed[value.name], TensorProto.FLOAT) for value in inputs]
    after = [cast_node(renamed[value.name], value.name, TensorProto.FLOAT16) for value in outputs]
    nodes = [*before, *(NodeProto.FromString(node.SerializeToString()) for node in graph.node), *after]
    del graph.node[:]
    graph.node.extend(nodes)


def widened(array: NDArray[Any]) -> NDArray[Any]:
    """A constant of float16 or bfloat16 as float32; any other as it is."""
    return array.astype(np.float32) if array.dtype in (np.float16, _BFLOAT16) else array


def _rename(graph: GraphProto, renamed: dict[str, str]) -> None:
    for node in graph.node:
        for field in (node.input, node.output):
            for position, name in enumerate(field):
                field[position] = renamed.get(name, name)


def _widen_attributes(node: NodeProto) -> None:
    for attribute in node.attribute:
        if attribute.name in _TYPE_ATTRIBUTES and attribute.i in NARROW:
            attribute.i = TensorProto.FLOAT
        if attribute.type == AttributeProto.TENSOR and attribute.t.data_type in NARROW:
            values = numpy_helper.to_array(attribute.t).astype(np.float32)
            attribute.t.CopyFrom(numpy_helper.from_array(values, attribute.t.name))


def cast_node(given: str, made: str, kind: int) -> NodeProto:
    """A Cast of a value to another element type."""
    return helper.make_node("Cast", [given], [made], f"{made}_cast", to=kind)


def _is_half(value: ValueInfoProto) -> bool:
    return value.type.tensor_type.elem_type == TensorProto.FLOAT16
