"""Stop a recurrent layer at the end of each sequence by its gates, rather than by a list of lengths.

Before, as torch writes a packed sequence::

    Y, Y_h, Y_c = LSTM(x, W, R, B, lengths, h, c)        or GRU

After::

    Y = Where(valid, LSTM(Concat(Where(valid, x, 0), Where(valid, 0, 8)), W', R, B, , h, c), 0)

where ``valid`` says which places are before the end, and W' has one more column, which at the others opens a GRU's
update gate, and an LSTM's forget gate, and shuts its input gate, further than the rest of what goes into them can undo.
So the state passes them as it is, whichever direction it comes from. A last hidden state is taken from the sequence; of
an LSTM running forwards from the last valid place, as its output gate goes on moving.

QNN EP 2.7 takes no lengths that are computed: each such layer would go to the CPU, between two partitions.

Outputs keep their names. Left alone: constant lengths (QNN takes those that are the whole sequence); an LSTM in reverse
that starts from a state that isn't zero; activations other than the usual, clip, peepholes, coupled gates, batch first;
weights that are computed; types other than float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper

from pipeline.graph.ir.attributes import settings, text
from pipeline.graph.ir.index import GraphIndex, LazyIndex, is_op
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.node_builder import Additions
from pipeline.graph.ir.traverse import input_at

_INPUT = 8.0
"""What the additional column reads at places that are not valid: no more than what a layer reads elsewhere, so that
the encoding of its input stays fine."""

_SHUT = 40.0
"""How far a gate is pushed beyond what the state and the bias can do: a sigmoid's last bit of float32 is at 17."""

_LARGEST_STATE = 8.0
"""How large a first state may be that isn't known; those that a layer makes are within 1."""

_GATES = {"GRU": (1.0, 0.0, 0.0), "LSTM": (-1.0, 0.0, 1.0, 0.0)}
"""Which way each gate is pushed, in ONNX's order: z, r, h; and i, o, f, c."""

_LENGTHS, _H, _C, _PEEPHOLES = 4, 5, 6, 7


def apply(model: ModelProto, folder: Path) -> int:
    """Rewrite every layer that is given lengths; returns their number."""
    index = LazyIndex(model, folder)
    added = Additions(index)
    ends: dict[tuple[str, int], _Ends] = {}
    layers = [node for node in model.graph.node if _matches(index, node)]
    for node in layers:
        places = shape_of(index.types[node.input[0]])[0]
        lengths = node.input[_LENGTHS]
        if (lengths, places) not in ends:
            ends[lengths, places] = _before_end(added, lengths, places)
        _rewrite(index, added, node, ends[lengths, places])
    if layers:
        added.join(removed=layers)
    return len(layers)


@dataclass(frozen=True)
class _Ends:
    """bool [places, batch]: which places are before the end of their sequence, and which is the last of them."""

    valid: str
    last: str
    zero: str

    def fitted(self, added: Additions, flags: str, out: str, *dims: int) -> str:
        """Flags in other dims."""
        return added.op("Reshape", flags, added.integers(f"{out}_shape", *dims), out=out)


def _matches(index: GraphIndex, node: NodeProto) -> bool:
    if not is_op(node, *_GATES) or input_at(node, _LENGTHS) in ("", *index.initializers):
        return False
    given = settings(node)
    usual = ["sigmoid", "tanh"] if node.op_type == "GRU" else ["sigmoid", "tanh", "tanh"]
    activations = [name.decode().lower() for name in given.pop("activations", [])]
    direction = given.pop("direction", b"forward")
    weights = [name for name in node.input[1:4] if name]
    return (
        given.keys() <= {"hidden_size", "linear_before_reset"}
        and activations in ([], usual, usual * 2)
        and all(name in index.initializers for name in weights)
        and all(index.initializers[name].data_type == TensorProto.FLOAT for name in weights)
        and not input_at(node, _PEEPHOLES)
        and (node.op_type == "GRU" or direction == b"forward" or _starts_at_zero(index, node))
    )


def _starts_at_zero(index: GraphIndex, node: NodeProto) -> bool:
    return all(not name or index.scalar(name) == 0 for name in (input_at(node, _H), input_at(node, _C)))


def _before_end(added: Additions, lengths: str, places: int) -> _Ends:
    batch = added.shape(lengths)[0]
    row = added.op("Reshape", lengths, added.integers(f"{lengths}_row_shape", 1, batch), out=f"{lengths}_row")
    count = np.arange(places, dtype=np.int32).reshape(-1, 1)
    place, number = (added.constant(f"{lengths}_{name}", count + at) for name, at in (("place", 0), ("number", 1)))
    valid = added.op("Less", place, row, out=f"{lengths}_valid")
    last = added.op("Equal", number, row, out=f"{lengths}_last")
    zero = added.number(f"{lengths}_zero", 0)
    return _Ends(valid, last, zero)


def _rewrite(index: GraphIndex, added: Additions, node: NodeProto, ends: _Ends) -> None:
    stem = next(name for name in node.output if name)
    source = node.input[0]
    places, batch, _ = added.shape(source)
    weights = index.constant(node.input[1])
    assert weights is not None
    directions, hidden = weights.shape[0], weights.shape[1] // len(_GATES[node.op_type])

    valid = ends.fitted(added, ends.valid, f"{stem}_valid", places, batch, 1)
    pushed = added.number(f"{stem}_pushed", _INPUT)
    clean = added.op("Where", valid, source, ends.zero, out=f"{stem}_clean")
    column = added.op("Where", valid, ends.zero, pushed, out=f"{stem}_column")
    joined = added.op("Concat", clean, column, out=f"{stem}_gated", axis=2)
    wider = np.concatenate([weights, _pushes(index, node)], axis=2).astype(np.float32)
    inputs = [joined, added.constant(f"{stem}_weights", wider), *node.input[2:]]
    inputs[_LENGTHS] = ""

    whole = added.value(f"{stem}_whole", TensorProto.FLOAT, (places, directions, batch, hidden))
    cell = ["", node.output[2]] if len(node.output) > 2 else []
    layer = helper.make_node(node.op_type, inputs, [whole, *cell], node.name)
    layer.attribute.extend(node.attribute)
    added.nodes.append(layer)
    if _output(index, node, 0):
        shown = ends.fitted(added, ends.valid, f"{stem}_shown", places, 1, batch, 1)
        added.replace("Where", shown, whole, ends.zero, out=node.output[0])
    if _output(index, node, 1):
        _last_states(added, node, whole, ends)


def _output(index: GraphIndex, node: NodeProto, position: int) -> bool:
    """Whether something uses an output."""
    name = node.output[position] if len(node.output) > position else ""
    return bool(name) and (name in index.outputs or name in index.readers)


def _pushes(index: GraphIndex, node: NodeProto) -> NDArray[np.float64]:
    """What the column of a layer's input is multiplied by: [directions, gates * hidden, 1]."""
    recurrence = index.constant(node.input[2])
    assert recurrence is not None
    state = index.constant(input_at(node, _H)) if input_at(node, _H) else np.zeros(1)
    largest = _LARGEST_STATE if state is None else max(1.0, float(np.abs(state).max()))
    reach = np.abs(recurrence).sum(axis=2) * largest
    bias = index.constant(input_at(node, 3)) if input_at(node, 3) else None
    if bias is not None:
        reach += np.abs(bias).reshape(len(bias), 2, -1).sum(axis=1)
    ways = np.repeat(_GATES[node.op_type], recurrence.shape[2])
    return np.asarray(ways * (reach + _SHUT) / _INPUT)[:, :, None]


def _last_states(added: Additions, node: NodeProto, whole: str, ends: _Ends) -> None:
    """Make Y_h, [directions, batch, hidden], from `whole`, [places, directions, batch, hidden]."""
    places, directions, batch, hidden = added.shape(whole)
    state = node.output[1]
    reverse = text(node, "direction") == "reverse"
    parts = []
    for direction in range(directions):
        backwards = reverse or direction == 1
        picked = node.op_type == "LSTM" and not backwards
        first, after = (0, places) if picked else (0, 1) if backwards else (places - 1, places)
        bounds = [
            added.integers(f"{state}_from", first, direction),
            added.integers(f"{state}_to", after, direction + 1),
        ]
        part = added.op("Slice", whole, *bounds, added.integers(f"{state}_axes", 0, 1), out=f"{state}_{direction}")
        if picked:
            last = ends.fitted(added, ends.last, f"{state}_last", places, 1, batch, 1)
            part = added.op("Where", last, part, ends.zero, out=f"{state}_picked")
            axis = added.integers(f"{state}_places", 0)
            part = added.op("ReduceSum", part, axis, out=f"{state}_sum", keepdims=1)
        parts.append(part)
    joined = parts[0] if directions == 1 else added.op("Concat", *parts, out=f"{state}_joined", axis=1)
    added.replace("Reshape", joined, added.integers(f"{state}_shape", directions, batch, hidden), out=state)
