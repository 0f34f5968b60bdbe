"""Compute in float32 what a model computes in float64.

Before::

    Mul(Cast(x, to float64), c of float64)

After::

    Mul(x, c of float32)

QNN has no float64, and compiles nothing of a graph that hands such a value on ("Unsupported FP64 data type in graph
IO"). Exporters write it where a model was made with numbers of Python or numpy, as grids of detectors are. Arithmetic
on shapes is gone by now, in which float32 might round to another size.

Values keep their names; constants beyond what float32 holds become its ends. Inputs and outputs keep their type, with a
Cast behind or in front of each. A graph that reads the bits of a float64 (BitCast) is left alone: float32 has others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, TypeProto, numpy_helper

from pipeline.graph.files.inlining import rename
from pipeline.graph.files.model_file import tensor_array
from pipeline.graph.files.single_precision import cast_node
from pipeline.graph.ir.index import GraphIndex, element_type, is_op

_TYPE_ATTRIBUTES = ("to", "dtype")


def apply(model: ModelProto, folder: Path) -> int:
    """Let the whole graph compute in float32; returns how many values and constants were float64."""
    graph = model.graph
    edges = {value.name for value in (*graph.input, *graph.output)}
    index = GraphIndex(model, folder)
    inner = [value for value in graph.value_info if _is_double(value.type) and value.name not in edges]
    constants = [tensor for tensor in graph.initializer if tensor.data_type == TensorProto.DOUBLE]
    inputs = [value.name for value in graph.input if _is_double(value.type) and not _is_cast_at_once(index, value.name)]
    outputs = [value.name for value in graph.output if _is_double(value.type) and _is_computed(index, value.name)]
    count = len(inner) + len(constants) + len(inputs) + len(outputs)
    if not count or any(_takes_bits(node, index) for node in graph.node):
        return 0
    for tensor in constants:
        tensor.CopyFrom(numpy_helper.from_array(_narrowed(tensor_array(tensor, folder)), tensor.name))
    for node in graph.node:
        if not ({*node.output} & edges - {*outputs}):  # what casts an output to its type goes on doing so
            _narrow_attributes(node)
    for value in inner:
        value.type.tensor_type.elem_type = TensorProto.FLOAT
    singles = {name: f"{name}_single" for name in (*inputs, *outputs)}
    for name, single in singles.items():
        kind = TypeProto()
        kind.CopyFrom(index.types[name])
        kind.tensor_type.elem_type = TensorProto.FLOAT
        graph.value_info.add(name=single, type=kind)
    rename(graph, singles)
    nodes = [cast_node(name, singles[name], TensorProto.FLOAT) for name in inputs]
    nodes += [NodeProto.FromString(node.SerializeToString()) for node in graph.node]
    nodes += [cast_node(singles[name], name, TensorProto.DOUBLE) for name in outputs]
    del graph.node[:]
    graph.node.extend(nodes)
    _drop_idle_casts(model, folder)
    return count


def _drop_idle_casts(model: ModelProto, folder: Path) -> None:
    """Let who reads a Cast from float32 to float32 read what it casts."""
    index, same = GraphIndex(model, folder), dict[str, str]()
    kept = []
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = same.get(name, name)
        kinds = {element_type(index, name) for name in (*node.input[:1], *node.output)}
        if is_op(node, "Cast") and node.output[0] not in index.outputs and kinds == {TensorProto.FLOAT}:
            same[node.output[0]] = node.input[0]
        else:
            kept.append(NodeProto.FromString(node.SerializeToString()))
    del model.graph.node[:]
    model.graph.node.extend(kept)


def _narrow_attributes(node: NodeProto) -> None:
    for attribute in node.attribute:
        if attribute.name in _TYPE_ATTRIBUTES and attribute.i == TensorProto.DOUBLE:
            attribute.i = TensorProto.FLOAT
        if attribute.type == AttributeProto.TENSOR and attribute.t.data_type == TensorProto.DOUBLE:
            values = _narrowed(numpy_helper.to_array(attribute.t))
            attribute.t.CopyFrom(numpy_helper.from_array(values, attribute.t.name))


def _narrowed(values: NDArray[Any]) -> NDArray[np.float32]:
    """As float32; finite numbers stay finite."""
    ends = np.finfo(np.float32)
    bounded = np.where(np.isfinite(values), np.clip(values, ends.min, ends.max), values)
    return bounded.astype(np.float32).reshape(values.shape)


def _is_cast_at_once(index: GraphIndex, name: str) -> bool:
    """Whether all that reads an input is a Cast to float32; so it is where nothing does."""
    readers = index.readers.get(name, ())
    return all(is_op(node, "Cast") and element_type(index, node.output[0]) == TensorProto.FLOAT for node in readers)


def _is_computed(index: GraphIndex, name: str) -> bool:
    """Whether an output is more than a Cast of a float32, or something else is computed of it."""
    cast = index.maker(name, "Cast")
    is_cast = cast is not None and element_type(index, cast.input[0]) == TensorProto.FLOAT
    return name in index.makers and (name in index.readers or not is_cast)


def _takes_bits(node: NodeProto, index: GraphIndex) -> bool:
    kinds = {element_type(index, name) for name in (*node.input, *node.output)}
    return is_op(node, "BitCast") and TensorProto.DOUBLE in kinds


def _is_double(kind: TypeProto) -> bool:
    return kind.tensor_type.elem_type == TensorProto.DOUBLE
