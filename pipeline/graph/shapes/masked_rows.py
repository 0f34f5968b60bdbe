"""Computing for all elements what a model computes for those where a mask is set.

PyTorch takes the elements out, computes with them, and puts the results back where they were::

    places = Transpose(NonZero(mask))
    rows = GatherND(x, places)                  as many as the mask has set, which depends on data
    y = ScatterND(base, places, f(rows))

If `f` computes each row from itself alone, all rows can be computed, and only those put back where the mask is set::

    rows = Reshape(Where(mask, x, 0), [all, ...])
    y = Where(mask, Reshape(f(rows), [...]), base)

So the spline flows of VITS and all that came of it choose the elements inside of an interval. A row is followed from
node to node: what would mix rows, or use how many there are for more than shapes, ends this with the error that the
NonZero would have had.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

from pipeline.errors import ModelError
from pipeline.graph.ir.attributes import integer, integers
from pipeline.graph.ir.index import is_op
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.traverse import DEFAULT_DOMAINS, input_at, reads

_EACH_ELEMENT = frozenset(
    {
        "Abs", "Add", "And", "Cast", "Ceil", "Clip", "Cos", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Greater",
        "GreaterOrEqual", "HardSigmoid", "Identity", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Min", "Mod",
        "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Softplus", "Sqrt",
        "Sub", "Tanh", "Where", "Xor",
    }
)  # fmt: skip
_ALONG_AN_AXIS = {
    "ArgMax": 0, "ArgMin": 0, "Concat": 0, "Gather": 0, "GatherElements": 0, "LayerNormalization": -1, "LogSoftmax": -1,
    "Softmax": -1, "Split": 0,
}  # fmt: skip
"""Operators with an attribute `axis`, and what it is where it is left out."""
_ALONG_AXES = frozenset(
    {
        "CumSum", "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
        "ReduceSumSquare", "Squeeze", "Unsqueeze",
    }
)  # fmt: skip
"""Operators whose second input has the axes."""
_OF_SHAPES = frozenset(
    {
        "Add", "Cast", "Concat", "ConstantOfShape", "Equal", "Expand", "Gather", "Identity", "Mul", "NonZero", "Range",
        "Reshape", "ScatterND", "Shape", "Slice", "Squeeze", "Sub", "Transpose", "Unsqueeze", "Where",
    }
)  # fmt: skip
"""What computes shapes and places, from how many rows there are."""
_CONTENTS = {"ConstantOfShape": (), "Expand": (0,), "Pad": (0, 2), "Reshape": (0,), "ScatterND": (0, 2), "Slice": (0,)}
"""The inputs of which a result has the numbers, where others say only how large it is, or where they go."""


@dataclass
class _Mask:
    """A mask whose set elements were taken: its name, its dims, and the error to end with.

    `rows` are values whose first axis has a row for each element, `places` say where these are, `counts` are made of
    how many there are; `shapes` are those of rows, of which the first number alone says that; `fillings` are counts of
    which only the dims say it, as of zeros for each row.
    """

    name: str
    dims: tuple[int, ...]
    refusal: ModelError
    rows: set[str] = field(default_factory=set)
    places: set[str] = field(default_factory=set)
    counts: set[str] = field(default_factory=set)
    shapes: set[str] = field(default_factory=set)
    fillings: set[str] = field(default_factory=set)

    @property
    def size(self) -> int:
        return int(np.prod(self.dims, dtype=np.int64))

    @property
    def tracked(self) -> set[str]:
        return self.rows | self.places | self.counts


class MaskedRows:
    """What a pass over nodes, of which all read types that are static, has met of rows taken by masks."""

    def __init__(
        self,
        type_of: Callable[[str], TypeProto | None],
        known: Callable[[str], NDArray[Any] | None],
        refusal: Callable[[NodeProto], ModelError],
    ) -> None:
        """`refusal` makes the error for a node whose output has a shape that depends on data."""
        self._type_of, self._known, self._refusal = type_of, known, refusal
        self._masks: dict[str, _Mask] = {}
        self._written: set[str] = set()

    def part(self, node: NodeProto) -> GraphProto | None:
        """What to put where a node stands; None if it stays. All nodes are shown, in their order.

        Raises:
            ModelError: it mixes rows, or uses how many there are.
        """
        if node.output[0] in self._written:
            return None
        met = [mask for mask in self._masks.values() if not mask.tracked.isdisjoint(reads(node))]
        if len(met) > 1:
            raise met[0].refusal
        if met:
            return self._follow(node, met[0])
        return self._all_places(node) if is_op(node, "NonZero") else None

    def check(self, outputs: Collection[str]) -> None:
        """Raise ModelError if rows, or how many there are, are outputs of the model."""
        for mask in self._masks.values():
            if not mask.tracked.isdisjoint(outputs):
                raise mask.refusal

    def _all_places(self, node: NodeProto) -> GraphProto | None:
        name = node.input[0]
        kind = self._type_of(name)
        if kind is None or self._known(name) is not None or kind.tensor_type.elem_type != TensorProto.BOOL:
            return None
        dims = shape_of(kind)
        if not dims or 0 in dims:
            return None
        mask = self._masks.setdefault(name, _Mask(name, dims, self._refusal(node)))
        mask.places.add(node.output[0])
        return GraphProto(
            initializer=[numpy_helper.from_array(np.indices(dims).reshape(len(dims), -1), node.output[0])]
        )

    def _follow(self, node: NodeProto, mask: _Mask) -> GraphProto | None:
        inputs = list(node.input)
        if node.domain not in DEFAULT_DOMAINS or set(reads(node)) != set(filter(None, inputs)):
            raise mask.refusal
        if is_op(node, "GatherND") and inputs[1] in mask.places and inputs[0] not in mask.tracked:
            return self._taken(node, mask)
        if is_op(node, "ScatterND") and inputs[1] in mask.places and inputs[0] not in mask.tracked:
            return self._put_back(node, mask)
        if not mask.places.isdisjoint(inputs):
            self._follow_places(node, mask)
        elif mask.rows.isdisjoint(inputs):
            self._follow_counts(node, mask)
        elif is_op(node, "Shape"):
            mask.counts.update(node.output)
            mask.shapes.update(node.output)
        elif self._keeps_rows(node, mask):
            mask.rows.update(filter(None, node.output))
        else:
            raise mask.refusal
        return None

    def _follow_places(self, node: NodeProto, mask: _Mask) -> None:
        if is_op(node, "Transpose"):
            mask.places.update(node.output)
        elif is_op(node, "Shape"):
            mask.counts.update(node.output)
        else:
            raise mask.refusal

    def _follow_counts(self, node: NodeProto, mask: _Mask) -> None:
        """Constants made of the shape of rows; that of other dims than the first says nothing of how many there are."""
        if not is_op(node, *_OF_SHAPES) or (is_op(node, "Cast") and integer(node, "to") != TensorProto.INT64):
            raise mask.refusal
        if not (is_op(node, "Gather", "Slice") and node.input[0] in mask.shapes and self._leaves_first(node)):
            counted = any(self._is_counted(name, mask) for name in self._contents(node))
            mask.counts.update(node.output)
            if not counted and not is_op(node, "ScatterND"):
                mask.fillings.update(node.output)

    def _contents(self, node: NodeProto) -> Sequence[str]:
        return [input_at(node, place) for place in _CONTENTS.get(node.op_type, range(len(node.input)))]

    def _is_counted(self, name: str, mask: _Mask) -> bool:
        """Whether the numbers of a value, and not only its dims, are made of how many rows there are."""
        return name in mask.counts and name not in mask.fillings

    def _leaves_first(self, node: NodeProto) -> bool:
        """Whether a Gather or Slice of a vector takes anything but its first number."""
        places, kind, steps = self._known(node.input[1]), self._type_of(node.input[0]), self._known(input_at(node, 4))
        if places is None or kind is None or (steps is not None and (steps < 0).any()):
            return False
        return bool((places % shape_of(kind)[0] > 0).all())

    def _taken(self, node: NodeProto, mask: _Mask) -> GraphProto | None:
        """All rows, with zeros where the mask isn't set, as what is computed of those is not used."""
        kind = self._type_of(node.input[0])
        if kind is None or integer(node, "batch_dims", 0) or shape_of(kind)[: len(mask.dims)] != mask.dims:
            raise mask.refusal
        rest, out = shape_of(kind)[len(mask.dims) :], node.output[0]
        dtype = helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type)
        part = GraphProto()
        chosen = _spread(part, mask, len(rest), out)
        part.initializer.append(numpy_helper.from_array(np.zeros((), dtype), f"{out}//none"))
        known = f"{out}//all"
        part.node.append(helper.make_node("Where", [chosen, node.input[0], f"{out}//none"], [known], known))
        _reshape(part, known, (mask.size, *rest), out)
        mask.rows.add(out)
        if len(mask.dims) == 1:  # then the Reshape changes nothing, and what reads its result will read this
            mask.rows.add(known)
            self._written.add(out)
        return part

    def _put_back(self, node: NodeProto, mask: _Mask) -> GraphProto:
        kind, values = self._type_of(node.input[0]), node.input[2]
        plain = all(attribute.s in (b"", b"none") for attribute in node.attribute)
        if kind is None or not plain or shape_of(kind)[: len(mask.dims)] != mask.dims:
            raise mask.refusal
        if not self._is_row(values, mask) or self._is_counted(values, mask):
            raise mask.refusal
        out = node.output[0]
        back = f"{out}//values"
        part = GraphProto()
        chosen = _spread(part, mask, len(shape_of(kind)) - len(mask.dims), out)
        _reshape(part, values, shape_of(kind), back)
        part.node.append(helper.make_node("Where", [chosen, back, node.input[0]], [out], out))
        self._written.update((back, out))
        return part

    def _keeps_rows(self, node: NodeProto, mask: _Mask) -> bool:
        """Whether each row of a node's results is computed from that row of what it reads."""
        given, size = node.input[0], mask.size
        if any(self._is_counted(name, mask) for name in self._contents(node)):
            return False
        rank = max(self._rank(name) for name in node.input if name)
        if is_op(node, *_EACH_ELEMENT):
            return all(self._is_aligned(name, rank, mask) for name in node.input if name)
        if is_op(node, *_ALONG_AN_AXIS):
            axis = integer(node, "axis", _ALONG_AN_AXIS[node.op_type]) % self._rank(given)
            if is_op(node, "Concat", "GatherElements"):
                return axis > 0 and all(self._is_row(name, mask) and self._first(name) == size for name in node.input)
            return axis > 0 and given in mask.rows and mask.tracked.isdisjoint(node.input[1:])
        if is_op(node, *_ALONG_AXES):
            grown = self._rank(given) + (len(self._axes(node)) if is_op(node, "Unsqueeze") else 0)
            axes = [axis % grown for axis in self._axes(node)]
            return given in mask.rows and bool(axes) and min(axes) > 0
        if is_op(node, "Transpose"):
            return integers(node, "perm", [*range(rank)][::-1])[0] == 0
        if is_op(node, "Reshape"):
            return self._reshapes_each(node, mask)
        if is_op(node, "Expand"):
            target = self._known(node.input[1])
            fits = target is not None and (target.size < rank or (target.size == rank and target[0] in (1, size)))
            others = target[1:] if target is not None and target.size == rank else target
            counted = node.input[1] in mask.counts and others is not None and bool((others == size).any())
            return fits and given in mask.rows and not counted  # as long as there are rows, and so a number
        if is_op(node, "Slice"):
            return self._slices_rows_whole(node, size)
        if is_op(node, "Pad"):
            return self._pads_no_rows(node)
        if is_op(node, "MatMul"):
            alone = node.input[1] not in mask.tracked and self._rank(node.input[1]) <= 2
            return given in mask.rows and self._rank(given) > 1 and alone
        return is_op(node, "ScatterND") and self._writes_into_own_rows(node, mask)

    def _axes(self, node: NodeProto) -> Sequence[int]:
        values = self._known(input_at(node, 1))
        return integers(node, "axes", []) if values is None else [int(axis) for axis in values.reshape(-1)]

    def _reshapes_each(self, node: NodeProto, mask: _Mask) -> bool:
        """Whether a Reshape leaves the first axis as it is."""
        target, kind = self._known(node.input[1]), self._type_of(node.input[0])
        if target is None or kind is None or target.size == 0:
            return False
        dims = shape_of(kind)
        sizes = [dims[at] if each == 0 and at < len(dims) else int(each) for at, each in enumerate(target)]
        others = [each for each in sizes[1:] if each >= 0]
        if sizes[0] == -1:
            return int(np.prod(others, dtype=np.int64)) == int(np.prod(dims[1:], dtype=np.int64))
        return sizes[0] == mask.size and (target[0] == 0 or node.input[1] in mask.counts)

    def _slices_rows_whole(self, node: NodeProto, size: int) -> bool:
        starts, ends = self._known(node.input[1]), self._known(node.input[2])
        axes, steps = self._known(input_at(node, 3)), self._known(input_at(node, 4))
        if starts is None or ends is None:
            return False
        for place in range(starts.size):
            axis = place if axes is None else int(axes[place])
            step = 1 if steps is None else int(steps[place])
            whole = starts[place] == 0 and ends[place] >= size and step == 1
            if axis % self._rank(node.input[0]) == 0 and not whole:
                return False
        return True

    def _pads_no_rows(self, node: NodeProto) -> bool:
        pads, axes = self._known(node.input[1]), self._known(input_at(node, 3))
        rank = self._rank(node.input[0])
        padded = [*range(rank)] if axes is None else [int(axis) % rank for axis in axes]
        return pads is not None and all(
            pads[place] == 0 and pads[place + len(padded)] == 0 for place, axis in enumerate(padded) if axis == 0
        )

    def _writes_into_own_rows(self, node: NodeProto, mask: _Mask) -> bool:
        """Whether a ScatterND takes for each row places in that row, by constants."""
        data, places, values = node.input
        known = self._known(places)
        if known is None or known.ndim < 2 or known.shape[0] != mask.size:
            return False
        own = np.arange(mask.size).reshape(-1, *[1] * (known.ndim - 2))
        return bool((known[..., 0] == own).all()) and all(self._is_row(name, mask) for name in (data, values))

    def _is_aligned(self, name: str, rank: int, mask: _Mask) -> bool:
        """Whether a value that is computed with rows has the same for all of them, or is of rows."""
        if name in mask.rows:
            return self._rank(name) == rank
        kind = self._type_of(name)
        dims = shape_of(kind) if kind is not None else ()
        return len(dims) < rank or dims[0] == 1 or self._is_uniform(name)

    def _is_row(self, name: str, mask: _Mask) -> bool:
        return name in mask.rows or self._is_uniform(name)

    def _is_uniform(self, name: str) -> bool:
        """Whether a value is a constant whose first axis has the same everywhere."""
        values = self._known(name)
        return values is not None and (values.ndim == 0 or bool((values == values[:1]).all()))

    def _first(self, name: str) -> int | None:
        kind = self._type_of(name)
        return next(iter(shape_of(kind)), None) if kind is not None else None

    def _rank(self, name: str) -> int:
        kind = self._type_of(name)
        return len(shape_of(kind)) if kind is not None else 0


def _spread(part: GraphProto, mask: _Mask, more: int, out: str) -> str:
    """The mask with `more` dims of 1 behind its own."""
    if not more:
        return mask.name
    _reshape(part, mask.name, (*mask.dims, *[1] * more), f"{out}//mask")
    return f"{out}//mask"


def _reshape(part: GraphProto, given: str, dims: Sequence[int], out: str) -> None:
    part.initializer.append(numpy_helper.from_array(np.array(dims, np.int64), f"{out}//dims"))
    part.node.append(helper.make_node("Reshape", [given, f"{out}//dims"], [out], out))
