"""Rules that change a graph node by node, and the values and nodes that they are written with.

A rule is a function of one node, made by :func:`lower`::

    @lower("Swish", of=F32)
    def decompose_swish(n: Node) -> GraphValue:
        x, alpha = n[0], n.attr("alpha", 1.0)
        return x * op.Sigmoid(x if alpha == 1 else x * alpha)

It returns the value that takes the place of the node's first output, True (or the number of changes) if it changed
something else, and False or None if it leaves the node alone. New values are named ``<result>_<operator>``, numbered if
taken, which depends on the structure of the graph alone: equal in all buckets of a component. Their types are inferred.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper

from pipeline.graph.ir.attributes import settings
from pipeline.graph.ir.index import FLOATS, GraphIndex, LazyIndex, element_type, is_op
from pipeline.graph.ir.node_builder import Additions
from pipeline.graph.ir.traverse import DEFAULT_DOMAINS, input_at, other_input

F32 = (TensorProto.FLOAT,)
INTS = (TensorProto.INT32, TensorProto.INT64)

Operand = "GraphValue | NDArray[Any] | list[int] | tuple[int, ...] | float | None"
"""An array becomes a constant, a list or tuple an int64 vector, a number a constant of the type of its neighbours."""
_T = TypeVar("_T")


class GraphValue:
    """A value of the graph, or of a node that a rule adds; ``+ - * /`` with values and numbers add nodes."""

    def __init__(self, added: Additions, name: str) -> None:
        self.added, self.name = added, name

    @property
    def shape(self) -> tuple[int, ...]:
        """The dims."""
        return self.added.shape(self.name)

    @property
    def kind(self) -> int:
        """The element type, as TensorProto counts them."""
        return self.added.element_type(self.name)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type, as numpy has it."""
        return helper.tensor_dtype_to_np_dtype(self.kind)

    @property
    def is_float(self) -> bool:
        """Whether the type is one that is quantized; False where the type is unknown."""
        return element_type(self.added.index, self.name) in FLOATS

    @property
    def is_f32(self) -> bool:
        """Whether the type is float32; False where the type is unknown."""
        return element_type(self.added.index, self.name) == TensorProto.FLOAT

    @property
    def is_constant(self) -> bool:
        """Whether the value is an initializer of the graph."""
        return self.name in self.added.index.initializers

    @property
    def is_output(self) -> bool:
        """Whether the value is an output of the model."""
        return self.name in self.added.index.outputs

    @property
    def array(self) -> NDArray[Any] | None:
        """The value of an initializer of the graph, None for any other value."""
        return self.added.index.constant(self.name)

    @property
    def scalar(self) -> float | None:
        """The value of an initializer whose elements are one number, None for any other value."""
        return self.added.index.scalar(self.name)

    def maker(self, *kinds: str) -> Node | None:
        """The node that makes the value, if its operator is one of these."""
        made = self.added.index.maker(self.name, *kinds)
        return None if made is None else Node(self.added, made)

    def reader(self, *kinds: str) -> Node | None:
        """The only reader of a value that is no output, if its operator is one of these."""
        found = self.added.index.sole_reader(self.name, *kinds)
        return None if found is None else Node(self.added, found)

    @property
    def readers(self) -> list[Node]:
        """The nodes of the graph that read the value."""
        return [Node(self.added, each) for each in self.added.index.readers.get(self.name, [])]

    def cast(self, kind: int) -> GraphValue:
        """The value in another element type."""
        return op.Cast(self, to=kind)

    def reshape(self, *dims: int) -> GraphValue:
        """The value with these dims."""
        return op.Reshape(self, dims)

    def shaped(self, *dims: int, always: bool = False) -> GraphValue:
        """The value with these dims, itself if it has them and not `always`; of a constant of the graph a constant."""
        if self.shape == dims and not always:
            return self
        values = self.array
        if values is None:
            return self.reshape(*dims)
        return GraphValue(
            self.added, self.added.constant(f"{self.added.stem}_shaped", np.ascontiguousarray(values.reshape(dims)))
        )

    def transpose(self, *order: int) -> GraphValue:
        """The value with its axes in this order."""
        return op.Transpose(self, perm=order)

    def slice(self, starts: list[int], ends: list[int], axes: list[int], steps: list[int] | None = None) -> GraphValue:
        """The elements from `starts` to `ends` along `axes`."""
        return op.Slice(self, starts, ends, axes, *([] if steps is None else [steps]))

    def from_behind(self, axis: int) -> GraphValue:
        """The value with one of its axes in reverse order; QNN takes a step of -1 for all types."""
        size = self.shape[axis]
        return self.slice([size - 1], [-size - 1], [axis], [-1])

    def __add__(self, other: GraphValue | float) -> GraphValue:
        return op.Add(self, other)

    def __radd__(self, other: float) -> GraphValue:
        return op.Add(other, self)

    def __sub__(self, other: GraphValue | float) -> GraphValue:
        return op.Sub(self, other)

    def __rsub__(self, other: float) -> GraphValue:
        return op.Sub(other, self)

    def __mul__(self, other: GraphValue | float) -> GraphValue:
        return op.Mul(self, other)

    def __rmul__(self, other: float) -> GraphValue:
        return op.Mul(other, self)

    def __truediv__(self, other: GraphValue | float) -> GraphValue:
        return op.Div(self, other)

    def __rtruediv__(self, other: float) -> GraphValue:
        return op.Div(other, self)

    def __neg__(self) -> GraphValue:
        return op.Neg(self)


class _Operators:
    """ONNX's operators by name: ``op.Gather(x, indices, axis=1)`` adds a node and returns its output.

    Trailing inputs of None are left out. ``name`` is the node's name, ``domain`` another domain than ONNX's.
    """

    def __getattr__(self, kind: str) -> Callable[..., GraphValue]:
        def add(*operands: Any, name: str = "", **attributes: Any) -> GraphValue:
            added = next(each.added for each in operands if isinstance(each, GraphValue))
            names = [_operand(added, each, operands) for each in operands]
            while names and not names[-1]:
                names.pop()
            made = added.op(kind, *names, out=f"{added.stem}_{kind.lower()}", name=name, **attributes)
            return GraphValue(added, made)

        return add


op = _Operators()


def _operand(added: Additions, given: Any, among: tuple[Any, ...]) -> str:
    if given is None:
        return ""
    if isinstance(given, GraphValue):
        return given.name
    if isinstance(given, (list, tuple)):
        return added.integers(f"{added.stem}_integers", *given)
    if not isinstance(given, np.ndarray):
        kinds = [each.kind for each in among if isinstance(each, GraphValue)]
        kind = next((each for each in kinds if each != TensorProto.BOOL), TensorProto.BOOL)
        given = np.array(given, helper.tensor_dtype_to_np_dtype(kind))
    return added.constant(f"{added.stem}_constant", given)


class Node:
    """A node of the graph as a rule sees it: ``n[0]`` is its first input."""

    def __init__(self, added: Additions, proto: NodeProto) -> None:
        self.added, self.proto = added, proto

    @property
    def kind(self) -> str:
        """The operator."""
        return self.proto.op_type

    @property
    def name(self) -> str:
        """The node's own name."""
        return self.proto.name

    @property
    def index(self) -> GraphIndex:
        """The graph before the rule."""
        return self.added.index

    @property
    def y(self) -> GraphValue:
        """The first output."""
        return GraphValue(self.added, self.proto.output[0])

    def __getitem__(self, at: int) -> GraphValue:
        return GraphValue(self.added, self.proto.input[at])

    @property
    def inputs(self) -> list[GraphValue | None]:
        """All inputs, None for those that are left out."""
        return [GraphValue(self.added, name) if name else None for name in self.proto.input]

    def get(self, at: int) -> GraphValue | None:
        """An input, None if the node has none there."""
        name = input_at(self.proto, at)
        return GraphValue(self.added, name) if name else None

    def reads(self, value: GraphValue) -> bool:
        """Whether a value is among the inputs."""
        return value.name in self.proto.input

    def other(self, value: GraphValue) -> GraphValue:
        """The input of a node of two inputs that is not `value`, or `value` if both are."""
        return GraphValue(self.added, other_input(self.proto, value.name))

    @property
    def attributes(self) -> dict[str, Any]:
        """All attributes by name, as values of Python; words are bytes."""
        return settings(self.proto)

    @overload
    def attr(self, name: str, default: str) -> str: ...
    @overload
    def attr(self, name: str, default: _T) -> _T: ...
    def attr(self, name: str, default: Any) -> Any:
        """An attribute, or its default."""
        found = settings(self.proto).get(name, default)
        return found.decode("utf-8", "replace") if isinstance(found, bytes) else found

    @property
    def pads_are_given(self) -> bool:
        """Whether a convolution or pool has its padding in `pads`, if it has any."""
        return self.attr("auto_pad", "NOTSET") == "NOTSET"

    def read(self, at: int, value: GraphValue) -> bool:
        """Let the node read another value; returns True."""
        self.proto.input[at] = value.name
        return True

    def become(self, value: GraphValue, at: int = 0) -> bool:
        """Let a value take the place, and the name, of an output; returns True."""
        result = self.proto.output[at]
        self.added.give(value.name, result)
        value.name = result
        return True

    def constant(self, values: NDArray[Any], stem: str = "") -> GraphValue:
        """A new initializer."""
        return GraphValue(self.added, self.added.constant(stem or f"{self.added.stem}_constant", values))

    def once(self, key: str, make: Callable[[], GraphValue]) -> GraphValue:
        """A new value that several places of the graph share."""
        if key not in self.added.shared:
            self.added.shared[key] = make().name
        return GraphValue(self.added, self.added.shared[key])

    def number(self, value: float) -> GraphValue:
        """A new initializer of one number, in the type of the first output."""
        return self.constant(np.array(value, self.y.dtype))


Change = Callable[[Node], "GraphValue | int | None"]


class GraphRule:
    """A change of a graph, with the name of the function that it was made of.

    `after` has the names of the rules that must run before, and why.
    """

    def __init__(self, change: Change, kinds: Collection[str], of: Collection[int], after: Mapping[str, str]) -> None:
        self.__name__ = change.__name__
        self.looks_for, self.after = frozenset(kinds), after
        self._change, self._of = change, of

    def apply(self, model: ModelProto, folder: Path, /) -> int:
        """Change `model` in place; returns the number of places changed."""
        nodes = [node for node in model.graph.node if node.op_type in self.looks_for and node.domain in DEFAULT_DOMAINS]
        if not nodes:
            return 0
        added = Additions(LazyIndex(model, folder))
        changed = sum(self._applies(added, node) for node in nodes)
        if changed:
            added.join()
        return changed

    def _applies(self, added: Additions, node: NodeProto) -> int:
        added.stem = next(filter(None, node.output), "")
        if self._of and element_type(added.index, added.stem) not in self._of:
            return 0
        if not is_op(node, *self.looks_for):
            return 0  # another node's change made this one something else
        place = Node(added, node)
        answer = self._change(place)
        return place.become(answer) if isinstance(answer, GraphValue) else int(answer or 0)


def lower(
    *kinds: str, of: Collection[int] = (), after: Mapping[str, str] | None = None
) -> Callable[[Change], GraphRule]:
    """The rule of a function of the nodes with these operators, whose first output has one of the types `of`."""
    return lambda change: GraphRule(change, kinds, of, after or {})
