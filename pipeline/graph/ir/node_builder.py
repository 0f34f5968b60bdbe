"""Nodes and constants that are to join a graph, with their names and types."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TypeProto, ValueInfoProto, helper, numpy_helper

from pipeline.graph.ir.index import GraphIndex, substitute
from pipeline.graph.ir.inference import Opsets, infer_outputs, shape_of
from pipeline.graph.ir.traverse import reads

_Name = str


class Additions:
    """Nodes under construction, in the order they were asked for. `index` is of the graph they will be part of."""

    def __init__(self, index: GraphIndex) -> None:
        self.index = index
        self._opsets = Opsets.of(index.model)
        self._types: dict[_Name, TypeProto] = {}
        self._constants: dict[str, NDArray[Any]] = {}
        self._made: set[str] = set()
        self._names: set[str] = set()
        self._untyped: dict[_Name, NodeProto] = {}
        self.nodes: list[NodeProto] = []
        self.shared: dict[str, _Name] = {}
        """New values that several places of the graph share, by a name for their purpose."""
        self.stem = ""
        """How the names of new values begin that :mod:`pipeline.graph.ir.rules` gives."""

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
        self.nodes.append(helper.make_node(kind, list(inputs), [out], self._node_name(out), **attributes))

    def give(self, name: _Name, out: _Name) -> None:
        """Let a value take the place of one of the graph: a new one is renamed, an Identity hands another one on."""
        if name not in self._made:
            self.replace("Identity", name, out=out)
            return
        at = next(at for at in reversed(range(len(self.nodes))) if name in self.nodes[at].output)
        self._made.discard(name)
        node = self.nodes[at]
        node.output[list(node.output).index(name)] = out
        self._untyped.pop(name, None)
        if node.name == name:
            self._names.discard(name)
            node.name = self._node_name(out)
        for reader in self.nodes[at + 1 :]:
            reader.input[:] = [out if each == name else each for each in reader.input]

    def _node_name(self, out: _Name) -> str:
        name = f"{out}_made"
        while name in self._names:  # a new node kept it from the one that is replaced, which was made here, too
            name += "_last"
        return name

    def op(self, kind: str, *inputs: _Name, out: _Name, name: str = "", **attributes: Any) -> _Name:
        """Add one of ONNX's own operators with one output, called `out`, numbered if taken; returns the name."""
        made = self._unused(out)
        node = helper.make_node(kind, list(inputs), [made], name or made, **attributes)
        self._untyped[made] = node
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

    def number(self, name: _Name, value: float, dtype: type[Any] | np.dtype[Any] = np.float32) -> _Name:
        """Add an initializer of one number, without dims."""
        return self.constant(name, np.array(value, dtype))

    def integers(self, name: _Name, *values: int) -> _Name:
        """Add an int64 vector: axes, a shape."""
        return self.constant(name, np.array(values, np.int64))

    def shape(self, name: _Name) -> tuple[int, ...]:
        """The dims of a value of the graph, or of one that was added."""
        return shape_of(self._type(name))

    def element_type(self, name: _Name) -> int:
        """The element type of a value of the graph, or of one that was added."""
        kind: int = self._type(name).tensor_type.elem_type
        return kind

    def finish(self) -> list[NodeProto]:
        """Add constants and types to the model; returns the nodes, for the caller to put in their place."""
        self._infer()
        graph = self.index.model.graph
        graph.initializer.extend(numpy_helper.from_array(values, name) for name, values in self._constants.items())
        graph.value_info.extend(
            ValueInfoProto(name=name, type=self._types[name])
            for node in self.nodes
            for name in node.output
            if name in self._made
        )
        return self.nodes

    def join(self, removed: Iterable[NodeProto] = ()) -> None:
        """Put everything into the model; the order of nodes stays topological.

        The nodes that made a result of an added node are removed, and so are those `removed`.
        """
        nodes, gone = self.finish(), list(removed)
        made = {name for node in nodes for name in node.output if name} - self._made
        gone += [node for node in self.index.model.graph.node if not made.isdisjoint(node.output)]
        if nodes or gone:
            substitute(self.index.model, gone, nodes)

    def _unused(self, stem: str) -> str:
        name, count = stem, 1
        while name in self._types or name in self._untyped or self.index.has(name):
            count += 1
            name = f"{stem}_{count}"
        return name

    def _infer(self, until: _Name = "") -> None:
        """Infer the types of new values in their order, up to one or all; a result of the graph needs none."""
        while self._untyped and (not until or until in self._untyped):
            name = next(iter(self._untyped))
            node = self._untyped.pop(name)
            given = {each: self._type(each) for each in reads(node)}
            self._types |= infer_outputs(node, given, self._small, self._opsets)

    def _type(self, name: _Name) -> TypeProto:
        self._infer(name)
        if name not in self._types:
            tensor = self.index.initializers.get(name)
            known = helper.make_tensor_type_proto(tensor.data_type, tensor.dims) if tensor is not None else None
            self._types[name] = known or self.index.types[name]
        return self._types[name]

    def _small(self, name: str) -> Any:
        if name in self._constants:
            return numpy_helper.from_array(self._constants[name], name)
        values = self.index.constant(name) if name in self.index.initializers else None
        return None if values is None or values.size > 1024 else numpy_helper.from_array(values, name)
