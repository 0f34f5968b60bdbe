"""What a graph does with the axes of its inputs: which are the steps of a recurrence, and which its batch.

An axis keeps its meaning through operators that move it, look something up by it, or leave it alone. Where one comes to
a GRU, LSTM or RNN, the layout of that node says what it is, whatever its name and its place in the input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal

from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, numpy_helper

from pipeline.graph.files.model_file import is_external
from pipeline.graph.ir.traverse import input_at, label

Use = Literal["steps", "batch"]

_Dims = tuple[frozenset[tuple[str, int]], ...]
"""Of each dim of a value the inputs' axes that it comes from, as names and places."""

_NONE: frozenset[tuple[str, int]] = frozenset()
_RECURRENT = ("GRU", "LSTM", "RNN")
_ALIGNED = frozenset(
    {"Add", "And", "Div", "Equal", "Greater", "Less", "Max", "Mean", "Min", "Mul", "Or", "PRelu", "Pow", "Sub", "Sum",
     "Where"}
)  # fmt: skip
_KEPT = frozenset(
    {
        "Abs", "BatchNormalization", "Cast", "CastLike", "Celu", "Clip", "CumSum", "DequantizeLinear", "Dropout", "Elu",
        "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "Identity", "InstanceNormalization", "LayerNormalization",
        "LeakyRelu", "Log", "LogSoftmax", "LpNormalization", "Mish", "Neg", "Not", "Pad", "QuantizeLinear", "Relu",
        "ReverseSequence", "Round", "Selu", "Sigmoid", "Sign", "Slice", "Softmax", "Softplus", "Sqrt", "Swish", "Tanh",
    }
)  # fmt: skip
"""Operators whose first output has the axes of their first input, if not all of each."""


@dataclass(frozen=True)
class AxisUse:
    """What an axis is for a recurrence; `why` names the node."""

    use: Use
    why: str


@dataclass(frozen=True)
class Uses:
    """What a graph does with its inputs: `axes` by name and place; `lengths` are inputs that say how many steps count,
    and the node that reads them so.
    """

    axes: Mapping[tuple[str, int], AxisUse]
    lengths: Mapping[str, str]


def find_uses(graph: GraphProto) -> Uses:
    """What the recurrences of a graph say of its inputs; nodes inside of nodes are not looked at."""
    axes: dict[tuple[str, int], AxisUse] = {}
    lengths: dict[str, str] = {}
    ranks = {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    known: dict[str, _Dims] = {name: (_NONE,) * rank for name, rank in ranks.items()}
    for value in graph.input:
        if value.name not in ranks and value.type.tensor_type.HasField("shape"):
            count = len(value.type.tensor_type.shape.dim)
            known[value.name] = tuple(frozenset({(value.name, place)}) for place in range(count))
    constants = {tensor.name: tensor for tensor in graph.initializer if not is_external(tensor)}
    given = {value.name for value in graph.input} - ranks.keys()
    for node in graph.node:
        said = {name: value for name, value in map(_value, node.attribute) if value is not None}
        if node.op_type == "Constant" and node.output and isinstance(said.get("value"), TensorProto):
            constants[node.output[0]] = said["value"]
            known[node.output[0]] = (_NONE,) * len(said["value"].dims)
            continue
        for use, origins in _told(node, said, known):
            for origin in origins:
                axes.setdefault(origin, AxisUse(use, f"{use} of {label(node)}"))
        if node.op_type in _RECURRENT and len(node.input) > 4 and node.input[4] in given:
            lengths[node.input[4]] = f"{label(node)} counts its steps by it"
        known |= _made(node, said, known, constants)
    return Uses(axes, lengths)


def _value(attribute: AttributeProto) -> tuple[str, Any]:
    """An attribute's name, and its value where that is a number, a list of them or a tensor."""
    match attribute.type:
        case AttributeProto.INT:
            return attribute.name, attribute.i
        case AttributeProto.INTS:
            return attribute.name, [*attribute.ints]
        case AttributeProto.TENSOR:
            return attribute.name, attribute.t
    return attribute.name, None


def _told(
    node: NodeProto, said: Mapping[str, Any], known: Mapping[str, _Dims]
) -> Iterator[tuple[Use, frozenset[tuple[str, int]]]]:
    """What a node says of axes."""

    def at(position: int, place: int) -> frozenset[tuple[str, int]]:
        dims = known.get(input_at(node, position), ())
        return dims[place] if len(dims) > place else _NONE

    if node.op_type in _RECURRENT and len(known.get(node.input[0], ()) if node.input else ()) == 3:
        first = bool(said.get("layout", 0))
        yield "steps", at(0, 1 if first else 0)
        yield "batch", at(0, 0 if first else 1)
        yield "batch", at(4, 0)
        for state in (5, 6):
            yield "batch", at(state, 0 if first else 1)
    if node.op_type == "ReverseSequence":
        yield "steps", at(0, said.get("time_axis", 0))
        yield "batch", at(0, said.get("batch_axis", 1))


def _made(
    node: NodeProto, said: Mapping[str, Any], known: Mapping[str, _Dims], constants: Mapping[str, Any]
) -> dict[str, _Dims]:
    """The axes of what a node makes, as far as they are known."""
    inputs = [known.get(name) for name in node.input]
    first = inputs[0] if inputs else None
    if not node.output:
        return {}
    if node.op_type in _ALIGNED:
        return {node.output[0]: _aligned([dims for dims in inputs if dims is not None])}
    if first is None and node.op_type != "Gather":
        return {}
    if node.op_type in _RECURRENT:
        return _of_recurrence(node, said, first or ())
    if node.op_type == "Split":
        return dict.fromkeys(node.output, first or ())
    make = _MAKERS.get(node.op_type)
    if make is None:
        return {node.output[0]: first or ()} if node.op_type in _KEPT else {}
    axes = _axes(node, said, constants)
    made = make(inputs, said, axes)
    return {} if made is None else {node.output[0]: made}


def _axes(node: NodeProto, said: Mapping[str, Any], constants: Mapping[str, Any]) -> Sequence[int] | None:
    """The axes that a node is given, as an attribute or as a constant; None for none."""
    if "axes" in said:
        return list(said["axes"])
    tensor = constants.get(input_at(node, 1))
    if tensor is None or len(tensor.dims) > 1:
        return None
    try:
        return [int(axis) for axis in numpy_helper.to_array(tensor).ravel()]
    except (ValueError, TypeError):  # other data than its dims say: for the steps of the build to refuse
        return None


def _aligned(values: Sequence[_Dims]) -> _Dims:
    """The dims of values that are broadcast to each other: the last ones of each go together."""
    together = zip_longest(*(reversed(dims) for dims in values), fillvalue=_NONE)
    return tuple(frozenset().union(*dims) for dims in together)[::-1]


def _of_recurrence(node: NodeProto, said: Mapping[str, Any], x: _Dims) -> dict[str, _Dims]:
    if len(x) != 3:
        return {}
    if said.get("layout", 0):
        made: list[_Dims] = [(x[0], x[1], _NONE, _NONE), (x[0], _NONE, _NONE), (x[0], _NONE, _NONE)]
    else:
        made = [(x[0], _NONE, x[1], _NONE), (_NONE, x[1], _NONE), (_NONE, x[1], _NONE)]
    return {name: dims for name, dims in zip(node.output, made, strict=False) if name}


_Inputs = Sequence[_Dims | None]
_Make = Callable[[_Inputs, Mapping[str, Any], Sequence[int] | None], _Dims | None]


def _transposed(inputs: _Inputs, said: Mapping[str, Any], _: Sequence[int] | None) -> _Dims | None:
    x = inputs[0] or ()
    order = said.get("perm", range(len(x))[::-1])
    return tuple(x[place] for place in order) if sorted(order) == [*range(len(x))] else None


def _squeezed(inputs: _Inputs, _: Mapping[str, Any], axes: Sequence[int] | None) -> _Dims | None:
    x = inputs[0] or ()
    gone = None if axes is None else {axis % len(x) for axis in axes if x}
    return None if gone is None else tuple(dim for place, dim in enumerate(x) if place not in gone)


def _unsqueezed(inputs: _Inputs, _: Mapping[str, Any], axes: Sequence[int] | None) -> _Dims | None:
    x = inputs[0] or ()
    if axes is None:
        return None
    rank, kept = len(x) + len(axes), iter(x)
    new = {axis % rank for axis in axes}
    return tuple(_NONE if place in new else next(kept, _NONE) for place in range(rank))


def _gathered(inputs: _Inputs, said: Mapping[str, Any], _: Sequence[int] | None) -> _Dims | None:
    table, places = inputs[:2]
    if table is None or places is None:
        return None
    axis = said.get("axis", 0) % len(table) if table else 0
    return (*table[:axis], *places, *table[axis + 1 :])


def _multiplied(inputs: _Inputs, _: Mapping[str, Any], __: Sequence[int] | None) -> _Dims | None:
    left, right = inputs[:2]
    if left is None or right is None or len(left) < 2 or len(right) < 2:
        return None
    return (*_aligned([left[:-2], right[:-2]]), left[-2], right[-1])


def _of_gemm(inputs: _Inputs, said: Mapping[str, Any], _: Sequence[int] | None) -> _Dims | None:
    left, right = inputs[:2]
    if left is None or right is None or len(left) != 2 or len(right) != 2:
        return None
    return left[1 if said.get("transA") else 0], right[0 if said.get("transB") else 1]


def _convolved(inputs: _Inputs, _: Mapping[str, Any], __: Sequence[int] | None) -> _Dims | None:
    x = inputs[0] or ()
    return (x[0], _NONE, *x[2:]) if len(x) > 2 else None


def _joined(inputs: _Inputs, _: Mapping[str, Any], __: Sequence[int] | None) -> _Dims | None:
    known = [dims for dims in inputs if dims is not None]
    return _aligned(known) if len({len(dims) for dims in known}) == 1 else None


_MAKERS: Mapping[str, _Make] = {
    "AveragePool": _convolved, "Concat": _joined, "Conv": _convolved, "Gather": _gathered, "Gemm": _of_gemm,
    "MatMul": _multiplied, "MaxPool": _convolved, "Squeeze": _squeezed, "Transpose": _transposed,
    "Unsqueeze": _unsqueezed,
}  # fmt: skip
