"""Compute over no more dims than QNN takes: 5, and 4 in many operators.

Before, as windows of a picture are spelled::

    a = Reshape(x, [1, 2, 3, 4, 2, 4])
    b = Transpose(a, perm=[0, 3, 1, 4, 2, 5])
    y = Reshape(Mul(b, w), [1, 24, 8])             with w of [4, 1, 2, 1, 4]

After::

    a = Transpose(Reshape(x, [2, 3, 4, 2, 4]), perm=[2, 0, 3, 1, 4])
    y = Reshape(Mul(a, Reshape(w, [4, 1, 2, 1, 4])), [1, 24, 8])

Each node is computed over as many dims as it tells apart: dims of 1 are left out, neighbours that it treats alike are
one, and between two nodes stands a Reshape where they see a value in other dims. A Transpose that tells more than 5
apart becomes several, each of which swaps two neighbouring stretches; what a comparison or the like spreads over more
than 4 is spread by an Expand before it.

QNN (2.51) has tensors of 5 dims at most: what has more stays on the CPU, and a model of nothing else is not compiled.
Of 5 dims it does not take the operators of `_TAKE_FOUR` (Neg, Sqrt, Max, LayerNormalization, ...: on the CPU, not
compiled, or "out of memory" for comparisons; EP 2.7, float16).

Results of up to 5 dims keep their names. Left alone: inputs and outputs of the model, operators that are not named
here, nodes that tell too many dims apart, and computed indices, bounds and axes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from pipeline.graph.ir.attributes import integer, integers, settings
from pipeline.graph.ir.axis_groups import MOST_DIMS, Dims, Groups, joined, merged, place, steps
from pipeline.graph.ir.index import GraphIndex, element_type, is_op
from pipeline.graph.ir.node_builder import Additions
from pipeline.graph.ir.ops import VIEWS
from pipeline.graph.ir.reductions import axes_are_an_input, reduced_axes

_FOUR = 4

_ELEMENTWISE_OF_FOUR = (
    "Acos", "And", "Asin", "Atan", "Ceil", "Cos", "Elu", "Equal", "Erf", "Floor", "Greater", "GreaterOrEqual",
    "HardSigmoid", "Less", "LessOrEqual", "Log", "Max", "Min", "Neg", "Not", "Or", "PRelu", "Round", "Selu", "Sign",
    "Sin", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "ThresholdedRelu", "Where", "Xor",
)  # fmt: skip
_ELEMENTWISE = (
    *_ELEMENTWISE_OF_FOUR, "Abs", "Add", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "Clip", "Div",
    "Exp", "Expand", "Gelu", "HardSwish", "LeakyRelu", "Mean", "Mod", "Mul", "Pow", "Reciprocal", "Relu",
    "Sigmoid", "Sub", "Sum",
)  # fmt: skip
_BY_CHANNEL = ("GlobalMaxPool", "InstanceNormalization")
_TAKE_FOUR = (*_ELEMENTWISE_OF_FOUR, *_BY_CHANNEL, "CumSum", "LayerNormalization", "ReduceMax", "ReduceMin")
"""Operators of 4 dims at most."""
_ALONG_ONE = ("LayerNormalization", "LogSoftmax", "Softmax")
_REDUCTIONS = ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum")


def apply(model: ModelProto, folder: Path) -> int:
    """Rewrite every node that has too many dims, and can do with fewer; returns their number."""
    merging = _Merging(GraphIndex(model, folder))
    if done := merging.give_names([node for node in model.graph.node if merging.rewrite(node)]):
        merging.added.join(removed=done)
    return len(done)


_Made = Sequence[str] | None
"""What stands for the results of a node in fewer dims; None where that can't be."""


class _Merging:
    """The nodes of a model, rewritten one after the other in their order."""

    def __init__(self, index: GraphIndex) -> None:
        self._index, self.added = index, Additions(index)
        self.high = {name for name in {*index.types, *index.initializers} if len(self._dims(name)) > MOST_DIMS}
        self._low: dict[str, str] = {}
        """What has the elements of a value in the dims of the node that makes it now, by the value's name."""
        self._views: dict[tuple[str, Dims], str] = {}

    def rewrite(self, node: NodeProto) -> bool:
        """Add what computes a node in fewer dims; whether that can be."""
        if not any(self._rank(name) > _most(node) for name in (*node.input, *node.output) if name):
            return False
        if any(name in self.high and name not in self._low and not self._is_constant(name) for name in node.input):
            return False  # an input of the model, or made by what was left alone
        if self._index.outputs & self.high & {*node.output}:
            return False
        if is_op(node, *VIEWS):
            self._give(node.output[0], self._source(node.input[0]))
            return True
        does = self._how(node)
        made = does(node) if does is not None else None
        for result, value in zip(node.output, made or (), strict=False):
            if result:
                self._give(result, value)
        return made is not None

    def give_names(self, done: Sequence[NodeProto]) -> list[NodeProto]:
        """Make the values of more dims that nodes which were left alone read; returns what is replaced of `done`."""
        gone = {name: node for node in done for name in node.output}
        kept = [node for node in self._index.model.graph.node if gone.keys().isdisjoint(node.output)]
        for name in dict.fromkeys(name for node in kept for name in node.input if name in self._low.keys() & self.high):
            if is_op(gone[name], *VIEWS) and gone[name].input[0] == self._low[name]:
                gone.pop(name)  # it would be written again as it is
            else:
                self.added.replace("Reshape", self._low[name], self._integers(name, self._dims(name)), out=name)
        return [node for node in done if not gone.keys().isdisjoint(node.output)]

    def _how(self, node: NodeProto) -> Callable[[NodeProto], _Made] | None:
        if node.domain not in ("", "ai.onnx"):
            return None
        if node.op_type in _ELEMENTWISE:
            return self._elementwise
        known: Mapping[str, Callable[[NodeProto], _Made]] = {
            "Transpose": self._transpose, "Concat": self._concat, "Gather": self._gather, "Slice": self._slice,
            "Split": self._split, "Tile": self._tile, "CumSum": self._cumsum,
            **dict.fromkeys(_ALONG_ONE, self._along_one), **dict.fromkeys(_REDUCTIONS, self._reduce),
            **dict.fromkeys(_BY_CHANNEL, self._by_channel),
        }  # fmt: skip
        return known.get(node.op_type)

    # -- values ------------------------------------------------------------------------------------------------------

    def _dims(self, name: str) -> Dims:
        return self.added.shape(name)

    def _rank(self, name: str) -> int:
        return len(self._dims(name)) if name in self._index.types or self._is_constant(name) else 0

    def _is_constant(self, name: str) -> bool:
        return name in self._index.initializers

    def _source(self, name: str) -> str:
        return self._low.get(name, name)

    def _integers(self, stem: str, values: Sequence[int]) -> str:
        return self.added.integers(f"{stem}_dims", *values)

    def _as(self, name: str, dims: Dims) -> str:
        """A value, or a constant, in these dims."""
        source = self._source(name)
        for has in (name, source):
            if self._dims(has) == dims and has not in self.high:
                return has
        values = self._index.constant(source) if self._is_constant(source) else None
        if (source, dims) not in self._views:
            made = f"{name}_merged"
            self._views[source, dims] = (
                self.added.op("Reshape", source, self._integers(name, dims), out=made)
                if values is None
                else self.added.constant(made, np.ascontiguousarray(values.reshape(dims)))
            )
        return self._views[source, dims]

    def _give(self, result: str, made: str) -> None:
        """Let `made` have the elements of `result`."""
        self._low[result] = made
        if result not in self.high:
            self.added.replace("Reshape", made, self._integers(result, self._dims(result)), out=result)

    def _op(self, node: NodeProto, *inputs: str, **attributes: Any) -> str:
        """The node with other inputs; attributes that are None are left out."""
        given = settings(node) | attributes
        kept = {name: value for name, value in given.items() if value is not None}
        return self.added.op(node.op_type, *inputs, out=f"{node.output[0]}_merged", name=node.name, **kept)

    # -- operators ---------------------------------------------------------------------------------------------------

    def _elementwise(self, node: NodeProto) -> _Made:
        dims = self._dims(node.output[0])
        operands = [name for name in (node.input[:1] if node.op_type == "Expand" else node.input) if name]
        spread = {name: (1,) * (len(dims) - len(self._dims(name))) + self._dims(name) for name in operands}

        def alike(left: int, right: int) -> bool:
            return all((has[left] == 1) == (has[right] == 1) for has in spread.values())

        groups = merged(dims, alike, most=_most(node))
        if groups is None:
            return self._spread_first(node, dims, spread, merged(dims, alike))
        shapes = {name: joined(has, groups) for name, has in spread.items()}
        # A bound of Clip is a number without dims, and has to stay one.
        inputs = [
            self._as(name, shapes[name]) if name in operands and self._dims(name) else name for name in node.input
        ]
        if node.op_type == "Expand":
            inputs[1:] = [self._integers(node.output[0], joined(dims, groups))]
        return [self._op(node, *inputs)]

    def _spread_first(self, node: NodeProto, dims: Dims, spread: Mapping[str, Dims], groups: Groups | None) -> _Made:
        """Make the operands as large as the result in these groups, so that all of its dims are alike."""
        whole = merged(dims, most=_most(node))
        if groups is None or whole is None:
            return None
        sizes = joined(dims, groups), joined(dims, whole)
        inputs = [
            self._spread(name, joined(spread[name], groups), *sizes) if name and self._dims(name) else name
            for name in node.input
        ]
        return [self._op(node, *inputs)]

    def _spread(self, name: str, dims: Dims, wide: Dims, whole: Dims) -> str:
        """A value in `dims`, spread over those that are `wide`, in the dims of the `whole`."""
        values = self._index.constant(name) if self._is_constant(name) else None
        if values is not None:
            return self.added.constant(f"{name}_merged", np.broadcast_to(values.reshape(dims), wide).reshape(whole))
        is_boolean = element_type(self._index, name) == TensorProto.BOOL
        given = self._as(name, tuple(size for size in dims if size > 1) if is_boolean else dims)
        if is_boolean:  # QNN leaves an Expand of booleans to the CPU, and compiles no Cast of 5 dims of them
            given = self.added.op("Cast", given, out=f"{name}_numbers", to=TensorProto.FLOAT)
            given = self.added.op("Reshape", given, self._integers(name, dims), out=f"{name}_numbers")
        made = self.added.op("Expand", given, self._integers(name, wide), out=f"{name}_spread")
        made = self.added.op("Reshape", made, self._integers(name, whole), out=f"{name}_merged")
        if is_boolean:
            made = self.added.op("Greater", made, self.added.number(f"{name}_half", 0.5), out=f"{name}_chosen")
        return made

    def _transpose(self, node: NodeProto) -> _Made:
        source, dims = node.input[0], self._dims(node.input[0])
        order = [axis for axis in integers(node, "perm") or reversed(range(len(dims))) if dims[axis] != 1]
        for groups, swapped in steps(order):
            given = self._as(source, joined(dims, groups))
            source = self.added.op("Transpose", given, out=f"{node.output[0]}_merged", perm=swapped)
        return [self._source(source)]

    def _along_one(self, node: NodeProto) -> _Made:
        dims = self._dims(node.input[0])
        axis = integer(node, "axis", -1) % len(dims)
        if node.op_type == "LayerNormalization" and (axis != len(dims) - 1 or len(node.output) > 1):
            return None
        groups = merged(dims, kept=(axis,), most=_most(node))
        # Scale and bias of a LayerNormalization: of more dims than the input now has they are refused.
        scales = {name: self._dims(name) for name in node.input[1:] if name and len(self._dims(name)) > 1}
        if groups is None or any(shape != (*(1,) * (len(shape) - 1), dims[axis]) for shape in scales.values()):
            return None
        others = [self._as(name, (dims[axis],)) if name in scales else name for name in node.input[1:]]
        return [self._op(node, self._in(node.input[0], groups), *others, axis=place(groups, axis))]

    def _by_channel(self, node: NodeProto) -> _Made:
        groups = merged(self._dims(node.input[0]), kept=(0, 1), most=_FOUR)
        if groups is None or len(groups) < 3 or len([name for name in node.output if name]) > 1:
            return None
        return [self._op(node, self._in(node.input[0], groups), *node.input[1:])]

    def _reduce(self, node: NodeProto) -> _Made:
        dims, reduced = self._dims(node.input[0]), reduced_axes(self._index, node)
        if reduced is None:
            return None

        def alike(left: int, right: int) -> bool:
            return (left in reduced) == (right in reduced)

        groups = merged(dims, alike, most=_FOUR) or (None if _most(node) == _FOUR else merged(dims, alike))
        if groups is None:
            return None
        places = [number for number, group in enumerate(groups) if group[0] in reduced]
        made = self._in(node.input[0], groups)
        if places and axes_are_an_input(self._index.model, node):
            made = self._op(node, made, self.added.integers(f"{node.output[0]}_axes", *places), keepdims=1)
        elif places:
            made = self._op(node, made, keepdims=1, axes=places)
        return [made]

    def _concat(self, node: NodeProto) -> _Made:
        dims = self._dims(node.output[0])
        axis = integer(node, "axis") % len(dims)
        groups = merged(dims, kept=(axis,))
        if groups is None:
            return None
        return [self._op(node, *(self._in(name, groups) for name in node.input), axis=place(groups, axis))]

    def _split(self, node: NodeProto) -> _Made:
        dims = self._dims(node.input[0])
        axis = integer(node, "axis") % len(dims)
        groups = merged(dims, kept=(axis,))
        if groups is None:
            return None
        # The results have names of their own: a Split is a Slice for each.
        given, along, start = self._in(node.input[0], groups), place(groups, axis), 0
        made = []
        for result in node.output:
            end = start + self._dims(result)[axis]
            bounds = [self.added.integers(f"{result}_bound", bound) for bound in (start, end, along)]
            made.append(self.added.op("Slice", given, *bounds, out=f"{result}_merged"))
            start = end
        return made

    def _slice(self, node: NodeProto) -> _Made:
        dims = self._dims(node.input[0])
        given = [self._index.constant(name) for name in node.input[1:] if name]
        if any(each is None for each in given) or "" in node.input:
            return None
        bounds = [each.reshape(-1).tolist() for each in given if each is not None]
        axes = [axis % len(dims) for axis in (bounds[2] if len(bounds) > 2 else range(len(bounds[0])))]
        groups = merged(dims, kept=axes)
        if groups is None:
            return None
        places = self.added.integers(f"{node.output[0]}_axes", *(place(groups, axis) for axis in axes))
        inputs = [self._in(node.input[0], groups), *node.input[1:3], places, *node.input[4:]]
        return [self._op(node, *inputs)]

    def _gather(self, node: NodeProto) -> _Made:
        dims = self._dims(node.input[0])
        axis = integer(node, "axis") % len(dims)
        indices = self._index.constant(node.input[1])
        groups = merged(dims, kept=(axis,))
        if indices is None or groups is None:
            return None
        places = self.added.integers(f"{node.output[0]}_places", *(indices.reshape(-1) % dims[axis]).tolist())
        return [self._op(node, self._in(node.input[0], groups), places, axis=place(groups, axis))]

    def _cumsum(self, node: NodeProto) -> _Made:
        dims, given = self._dims(node.input[0]), self._index.constant(node.input[1])
        if given is None:
            return None
        axis = int(given.flat[0]) % len(dims)
        groups = merged(dims, kept=(axis,), most=_most(node))
        if groups is None:
            return None
        made = self.added.constant(f"{node.output[0]}_axis", np.array(place(groups, axis)))
        return [self._op(node, self._in(node.input[0], groups), made)]

    def _tile(self, node: NodeProto) -> _Made:
        dims, repeats = self._dims(node.input[0]), self._index.constant(node.input[1])
        if repeats is None:
            return None
        times = repeats.reshape(-1).tolist()
        groups = merged(dims, kept=[axis for axis, count in enumerate(times) if count != 1])
        if groups is None:
            return None
        counts = self._integers(node.output[0], joined(times, groups))
        return [self._op(node, self._in(node.input[0], groups), counts)]

    def _in(self, name: str, groups: Groups) -> str:
        return self._as(name, joined(self._dims(name), groups))


def _most(node: NodeProto) -> int:
    return _FOUR if is_op(node, *_TAKE_FOUR) else MOST_DIMS


AFTER = {
    "fuse_layer_norm": "a norm of 5 dims becomes a LayerNormalization, of which QNN takes 4",
    "count_indices_from_the_front": "it writes comparisons of 5 dims, of which QNN takes 4",
    "compare_casts": "it writes comparisons of 5 dims, of which QNN takes 4",
}
