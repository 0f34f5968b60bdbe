"""Nodes and constants that are to join a graph, with their names and types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TypeProto, ValueInfoProto, helper, numpy_helper

from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.ir.inference import Opsets, infer_outputs, shape_of

_Name = str


class Additions:
    """Nodes under construction, in the order they were asked for. `index` is of the graph they will be part of."""

    def __init__(self, index: GraphIndex) -> None:
        self._index = index
        self._opsets = Opsets.of(index.model)
        self._types = dict(index.types)
        self._types |= {
            name: helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
            for name, tensor in index.initializers.items()
        }
        self._constants: dict[str, NDArray[Any]] = {}
        self._made: set[str] = set()
        self._names: set[str] = set()
        self.nodes: list[NodeProto] = []

    def value(self, name: _Name, kind: int, dims: Sequence[int]) -> _Name:
        """A name and a type for a value that a node appended to ``nodes`` makes."""
        made = self._unused(name)
        self._types[made] = helper.make_tensor_type_proto(kind, dims)
        self._made.add(made)
        return made

    def know(self, name: _Name, kind: TypeProto) -> None:
        """Tell the type of a value that came into the graph after `index` was made."""
        self._types[name] = kind

    def replace(self, kind: str, *inputs: _Name, out: _Name, **attributes: Any) -> None:
        """Add an operator that makes a value of the graph in place of the node that made it so far."""
        name = f"{out}_made"
        while name in self._names:  # a new node kept it from the one that is replaced, which was made here, too
            name += "_last"
        self.nodes.append(helper.make_node(kind, list(inputs), [out], name, **attributes))

    def op(self, kind: str, *inputs: _Name, out: _Name, name: str = "", **attributes: Any) -> _Name:
        """Add one of ONNX's own operators with one output, called `out`, numbered if taken; returns the name."""
        made = self._unused(out)
        node = helper.make_node(kind, list(inputs), [made], name or made, **attributes)
        self._types |= infer_outputs(node, self._types, self._small, self._opsets)
        self._made.add(made)
        self._names.add(node.name)
        self.nodes.append(node)
        return made

    def constant(self, name: _Name, values: NDArray[Any]) -> _Name:
        """Add an initializer."""
        made = self._unused(name)
        self._constants[made] = values
        self._types[made] = helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(values.dtype), values.shape)
        return made

    def integers(self, name: _Name, *values: int) -> _Name:
        """Add an int64 vector: axes, a shape."""
        return self.constant(name, np.array(values, np.int64))

    def shape(self, name: _Name) -> tuple[int, ...]:
        """The dims of a value of the graph, or of one that was added."""
        return shape_of(self._types[name])

    def finish(self) -> list[NodeProto]:
        """Add constants and types to the model; returns the nodes, for the caller to put in their place."""
        graph = self._index.model.graph
        graph.initializer.extend(numpy_helper.from_array(values, name) for name, values in self._constants.items())
        graph.value_info.extend(
            ValueInfoProto(name=name, type=self._types[name])
            for node in self.nodes
            for name in node.output
            if name in self._made
        )
        return self.nodes

    def _unused(self, stem: str) -> str:
        name, count = stem, 1
        while name in self._types or name in self._index.makers:
            count += 1
            name = f"{stem}_{count}"
        return name

    def _small(self, name: str) -> Any:
        if name in self._constants:
            return numpy_helper.from_array(self._constants[name], name)
        values = self._index.constant(name) if name in self._index.initializers else None
        return None if values is None or values.size > 1024 else numpy_helper.from_array(values, name)
