"""The nodes that one fused operator becomes: names for what they make, and what is known of what they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TypeProto, helper, numpy_helper

from pipeline.errors import ModelError
from pipeline.graph.ir.attributes import settings
from pipeline.graph.ir.inference import Opsets, is_static, shape_of
from pipeline.graph.ir.traverse import input_at, label, unused

_Name = str


class Unfused:
    """ONNX operators in place of `node`, in the order they are asked for.

    `types` has the static type of all that the node reads. New values are named ``<name of the node>/<number>``, with
    more behind that where it is among the names `taken`, the same for every bucket.
    """

    def __init__(self, node: NodeProto, types: Mapping[str, TypeProto], opsets: Opsets, taken: set[_Name]) -> None:
        self.node = node
        self._types = types
        self._opset = opsets.versions.get("", 1)
        self._graph = GraphProto()
        self._attributes = settings(node)
        self._count = 0
        self._taken = taken

    @property
    def graph(self) -> GraphProto:
        """What was written so far."""
        return self._graph

    def given(self, position: int) -> _Name:
        """The name of an input; empty where the node has none there."""
        return input_at(self.node, position)

    def asked(self, position: int) -> _Name:
        """The name of an output; empty where nobody asks for it."""
        return self.node.output[position] if position < len(self.node.output) else ""

    def dims(self, name: _Name) -> tuple[int, ...]:
        """The dims of an input of the node."""
        kind = self._types.get(name)
        if kind is None or not is_static(kind):
            raise self.refused(f"the shape of its input {name!r} is not known")
        return shape_of(kind)

    def element_type(self, name: _Name) -> int:
        """The element type of an input of the node, as TensorProto counts them."""
        kind: int = self._types[name].tensor_type.elem_type
        return kind

    def number(self, name: str, default: float) -> float:
        """An attribute that is a number."""
        return float(self._attributes.get(name, default))

    def whole(self, name: str, default: int = 0) -> int:
        """An attribute that is a whole number."""
        return int(self._attributes.get(name, default))

    def numbers(self, name: str) -> list[float]:
        """An attribute that is a list of numbers; empty where the node has none."""
        return [float(value) for value in self._attributes.get(name, ())]

    def text(self, name: str) -> str:
        """An attribute that is text; empty where the node has none."""
        value = self._attributes.get(name, b"")
        return value.decode() if isinstance(value, bytes) else str(value)

    def op(self, kind: str, *inputs: _Name, domain: str = "", **attributes: Any) -> _Name:
        """Add an operator with one output; returns the name of that."""
        return self.ops(kind, *inputs, outputs=1, domain=domain, **attributes)[0]

    def ops(self, kind: str, *inputs: _Name, outputs: int, domain: str = "", **attributes: Any) -> list[_Name]:
        """Add an operator with several outputs."""
        made = [self._name() for _ in range(outputs)]
        self._graph.node.append(helper.make_node(kind, inputs, made, name=made[0], domain=domain, **attributes))
        return made

    def constant(self, values: NDArray[Any]) -> _Name:
        """Add a constant."""
        made = self._name()
        self._graph.initializer.append(
            numpy_helper.from_array(np.ascontiguousarray(values).reshape(values.shape), made)
        )
        return made

    def scalar(self, value: float) -> _Name:
        """Add a constant of one float32."""
        return self.constant(np.array(value, np.float32))

    def integers(self, *values: int) -> _Name:
        """Add an int64 vector: axes, a shape."""
        return self.constant(np.array(values, np.int64))

    def reshaped(self, name: _Name, *dims: int) -> _Name:
        """A value in other dims."""
        return self.op("Reshape", name, self.integers(*dims))

    def part(self, name: _Name, axis: int, start: int, end: int) -> _Name:
        """The elements from `start` to before `end` on an axis."""
        return self.op("Slice", name, self.integers(start), self.integers(end), self.integers(axis))

    def mean(self, name: _Name) -> _Name:
        """The mean over the last axis, which stays with a length of 1."""
        if self._opset < 18:
            return self.op("ReduceMean", name, axes=[-1], keepdims=1)
        return self.op("ReduceMean", name, self.integers(-1), keepdims=1)

    def give(self, position: int, name: _Name) -> None:
        """Let a value be an output of the node, if anybody asks for that."""
        if made := self.asked(position):
            self._graph.node.append(helper.make_node("Identity", [name], [made], name=f"{self.node.name}/{made}"))

    def kept_attributes(self, names: Sequence[str]) -> dict[str, Any]:
        """Those attributes of the node that are among these."""
        return {name: self._attributes[name] for name in names if name in self._attributes}

    def refuse_unless(self, known: bool, what: str) -> None:
        """Raise ModelError: the operator is used in a way that is not written out, `what`."""
        if not known:
            raise self.refused(what)

    def refused(self, why: str) -> ModelError:
        """The error for a use of the operator that can't be written out."""
        return ModelError(
            f"node {label(self.node)} can't be written out in ONNX's own operators",
            why=why,
            remedy="name the file that this one was optimized from (on the hub 'onnx/model.onnx'), or export again"
            " without optimization",
        )

    def _name(self) -> _Name:
        self._count += 1
        stem = self.node.name or next(filter(None, self.node.output), "")
        made = unused(f"{stem}/{self._count}", self._taken)
        self._taken.add(made)
        return made
