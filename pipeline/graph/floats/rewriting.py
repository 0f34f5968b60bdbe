"""Nodes that take the place of one that computes on quantized values, and the constants they read."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from pipeline.errors import ModelError
from pipeline.graph.ir.attributes import settings
from pipeline.graph.ir.traverse import input_at, label, unused

_Name = str


QUANTIZED = (TensorProto.UINT8, TensorProto.INT8, TensorProto.UINT16, TensorProto.INT16)
"""Element types of quantized activations."""


class Replacing:
    """The nodes in place of `node`; new values are named ``<first output>/<number>``, with more behind that where
    it is among the names `taken`.

    `real` are values that are declared as quantized and are numbers as they were before quantization.
    """

    def __init__(
        self,
        node: NodeProto,
        real: set[_Name],
        find: Callable[[_Name], TensorProto | None],
        kinds: Mapping[_Name, int],
        taken: set[_Name],
    ) -> None:
        """`find` gives an initializer of the graph around the node, `kinds` the types of other quantized values."""
        self.node = node
        self.real = real
        self._find = find
        self._kinds = kinds
        self._taken = taken
        self._stem = next(filter(None, node.output), node.name)
        self._count = 0
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self._attributes = settings(node)

    def given(self, position: int) -> _Name:
        """The name of an input; empty where the node has none there."""
        return input_at(self.node, position)

    def whole(self, name: str, default: int = 0) -> int:
        """An attribute that is a whole number."""
        return int(self._attributes.get(name, default))

    def attributes(self, but: Collection[str] = ()) -> dict[str, Any]:
        """All attributes, without those named in `but`."""
        return {name: value for name, value in self._attributes.items() if name not in but}

    def dims(self, name: _Name) -> tuple[int, ...]:
        """The dims of an initializer.

        Raises:
            ModelError: it is none.
        """
        found = self._find(name)
        if found is None:
            raise self.refused(f"its input {name!r} is no constant")
        return tuple(found.dims)

    def kind(self, name: _Name) -> int:
        """The element type of an initializer or a quantized value, as TensorProto counts them; 0 of any other."""
        found = self._find(name)
        return self._kinds.get(name, 0) if found is None else found.data_type

    def op(self, kind: str, *inputs: _Name, domain: str = "", **attributes: Any) -> _Name:
        """Add an operator with one output; returns its name."""
        made = self.unused()
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        self.nodes.append(helper.make_node(kind, inputs, [made], made, domain=domain, **attributes))
        return made

    def constant(self, values: NDArray[Any]) -> _Name:
        """Add an initializer."""
        made = self.unused()
        self.constants.append(numpy_helper.from_array(values, made))
        return made

    def integers(self, *values: int) -> _Name:
        """Add an int64 vector: axes, a shape."""
        return self.constant(np.array(values, np.int64))

    def unused(self) -> _Name:
        """A name for a new value."""
        self._count += 1
        made = unused(f"{self._stem}/{self._count}", self._taken)
        self._taken.add(made)
        return made

    def give(self, name: _Name, position: int = 0) -> None:
        """Let a value be an output of the node."""
        made = self.node.output[position] if position < len(self.node.output) else ""
        if not made:
            return
        self.nodes.append(helper.make_node("Identity", [name], [made], f"{made}/given"))

    def number(self, name: _Name, scale: _Name, zero: _Name, axis: int = 0) -> _Name:
        """A quantized input as numbers: ``(q - zero) scale``, where a vector of scales is along `axis`."""
        if name in self.real:
            return self.op("Mul", name, scale) if scale not in self.real else name
        found, given = self._find(scale), self._find(zero) if zero else None
        if found is not None and given is not None and math.prod(found.dims) > 1 == math.prod(given.dims):
            zero = self.op("Expand", self.op("Reshape", zero, self.integers(1)), self.integers(*found.dims))
        return self.op("DequantizeLinear", name, scale, zero, axis=axis)

    def difference(self, name: _Name, zero: _Name, axis: int = 0) -> _Name:
        """A quantized input of an integer product: ``q - zero``."""
        if name in self.real:
            return name
        found = self._find(zero) if zero else None
        ones = np.ones(tuple(found.dims) if found is not None else (), np.float32)
        return self.op("DequantizeLinear", name, self.constant(ones), zero, axis=axis)

    def give_rounded(self, name: _Name, scale: _Name, zero: _Name) -> None:
        """Let a value, quantized, be the output of the node; as it is where there is no scale."""
        if scale:
            zero = zero or self.constant(np.zeros((), helper.tensor_dtype_to_np_dtype(self.quantized_kind())))
            self.give(self.op("QuantizeLinear", name, scale, zero))
        else:
            self.give(name)

    def quantized_kind(self) -> int:
        """The element type of the quantized values that the node takes, which is that of what it gives."""
        found = next((kind for name in self.node.input if (kind := self.kind(name)) in QUANTIZED), 0)
        self.refuse_unless(found in QUANTIZED, "the type of what it gives is not known: it has no zero point")
        return found

    def refuse_unless(self, known: bool, why: str) -> None:
        """Raise ModelError unless the node is used in a way that is `known`."""
        if not known:
            raise self.refused(why)

    def refused(self, why: str) -> ModelError:
        """The error for a use of the operator that is not known here."""
        return ModelError(
            f"node {label(self.node)} computes on quantized values in a way that can't be written in floats",
            why=why,
            remedy="name the float file that this one was made of; on the hub it is usually 'onnx/model.onnx'",
        )


def inserted(graph: GraphProto, nodes: list[NodeProto], constants: list[TensorProto]) -> None:
    """Put `nodes` in place of those of the graph, and add `constants`."""
    kept = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)
    graph.initializer.extend(constants)
