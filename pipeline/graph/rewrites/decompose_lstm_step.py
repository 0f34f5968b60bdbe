"""Write one step of an LSTM whose state is carried with what it changes, not with what it keeps.

Before, over a sequence of one place, with a cell state c that is no constant::

    Y, Y_h, Y_c = LSTM(x, W, R, B, "", h, c)

After, where ``i, o, f, g`` are the columns of ``Gemm(x, W', B) + MatMul(h, R')``::

    Y_c = c + (s(i) * Tanh(g) - s(-f) * c)       Y_h = Sigmoid(o) * Tanh(Y_c)
    s(v) = Exp(Min(v, 0)) / (1 + Exp(-Abs(v)))

A model for streams hands its state from step to step, thousands of times, so every step adds its error to the next.
HTP's Sigmoid (2.51, emulated, float16) is off by up to 6e-4 wherever it is: a gate that keeps all but 1 % of a cell
state of 30 changes it by 0.02 too much or too little. What a gate loses is small, and this form has it to float16's
precision; neither Exp is above 1. silero-vad in float16 over 500 steps against the original: the probability of
speech is off by up to 0.055 with Sigmoid, and by 0.014 like this.

Results keep their names. Left alone: longer sequences, two directions, a state that starts from a constant, lengths,
peepholes, other activations, `clip`, `input_forget` and `layout`, and weights that are computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import NodeProto

from pipeline.graph.ir.attributes import is_special_lstm
from pipeline.graph.ir.index import GraphIndex, is_float32, is_op
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.node_builder import Additions, each_node


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace an LSTM over one place."""
    if not _matches(added.index, node):
        return False
    _write(added.index, added, node)
    return True


def _matches(index: GraphIndex, node: NodeProto) -> bool:
    if not is_op(node, "LSTM") or is_special_lstm(node):
        return False
    source, weights, recurrent, bias, lengths, hidden, cell, peepholes = (*node.input, *[""] * 8)[:8]
    if lengths or peepholes or source not in index.types or any(name not in index.types for name in (hidden, cell)):
        return False
    constant = all(name in index.initializers for name in (weights, recurrent, *([bias] if bias else [])))
    if not constant or not is_float32(index, source) or index.initializers[weights].dims[0] != 1:
        return False
    return shape_of(index.types[source])[0] == 1


def _write(index: GraphIndex, added: Additions, node: NodeProto) -> None:
    source, weights, recurrent, bias, _, hidden, cell, *_ = (*node.input, *[""] * 8)[:8]
    stem = next(name for name in node.output if name)
    _, batch, size = shape_of(index.types[hidden])
    inner = shape_of(index.types[source])[2]
    given = {
        name: added.op("Reshape", value, added.integers(f"{stem}_shape", batch, width), out=f"{stem}_{name}")
        for name, value, width in (("place", source, inner), ("hidden", hidden, size), ("cell", cell, size))
    }
    biases = index.constant(bias) if bias else None
    total = np.zeros(4 * size, np.float32) if biases is None else biases.reshape(2, -1).sum(axis=0)
    both = added.op(
        "Add",
        added.op("Gemm", given["place"], _columns(index, added, weights, stem, "input_weights"),
                 added.constant(f"{stem}_bias", total.astype(np.float32)), out=f"{stem}_of_place"),
        added.op("MatMul", given["hidden"], _columns(index, added, recurrent, stem, "state_weights"),
                 out=f"{stem}_of_hidden"),
        out=f"{stem}_gates",
    )  # fmt: skip
    enter, leave, keep, new = (_part(added, both, stem, at * size, (at + 1) * size) for at in range(4))
    gained = added.op("Mul", _gate(added, enter, stem), added.op("Tanh", new, out=f"{stem}_new"), out=f"{stem}_gained")
    lost = added.op(
        "Mul", _gate(added, added.op("Neg", keep, out=f"{stem}_forget"), stem), given["cell"], out=f"{stem}_lost"
    )
    change = added.op("Sub", gained, lost, out=f"{stem}_change")
    after = added.op("Add", given["cell"], change, out=f"{stem}_after")
    opened = added.op("Sigmoid", leave, out=f"{stem}_opened")
    state = added.op("Mul", opened, added.op("Tanh", after, out=f"{stem}_bent"), out=f"{stem}_state")
    shapes = [(1, 1, batch, size), (1, batch, size), (1, batch, size)]
    for name, value, shape in zip(node.output, (state, state, after), shapes, strict=False):
        if name:
            added.replace("Reshape", value, added.integers(f"{name}_shape", *shape), out=name)


def _columns(index: GraphIndex, added: Additions, weights: str, stem: str, name: str) -> str:
    """The weights of one direction, a column for each row."""
    array = index.constant(weights)
    assert array is not None
    return added.constant(f"{stem}_{name}", np.ascontiguousarray(array[0].T))


def _part(added: Additions, gates: str, stem: str, start: int, end: int) -> str:
    bounds: Sequence[str] = [added.integers(f"{stem}_at", value) for value in (start, end, 1)]
    return added.op("Slice", gates, *bounds, out=f"{stem}_gate")


def _gate(added: Additions, value: str, stem: str) -> str:
    """A sigmoid that is as precise near 0 as the format: quotients of powers of e that are at most 1."""
    zero, one = (added.number(f"{stem}_{number}", number) for number in (0, 1))
    above = added.op("Exp", added.op("Min", value, zero, out=f"{stem}_below"), out=f"{stem}_part")
    size = added.op("Neg", added.op("Abs", value, out=f"{stem}_size"), out=f"{stem}_minus")
    whole = added.op("Add", added.op("Exp", size, out=f"{stem}_other"), one, out=f"{stem}_whole")
    return added.op("Div", above, whole, out=f"{stem}_share")


AFTER = {"replace_lengths_by_gates": "lengths become gates, and a layer without them is one step"}
