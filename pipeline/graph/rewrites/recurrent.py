"""Recurrent layers and sequences.

Figures are of QNN EP 2.7 and HTP 2.51, emulated. Results keep their names.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, ValueInfoProto, helper

from pipeline.graph.ir.attributes import is_special_lstm
from pipeline.graph.ir.rules import GraphValue, Node, lower, op


@lower("ReverseSequence")
def reverse_sequences(n: Node) -> GraphValue:
    """Take the steps of a sequence from behind by their places; QNN leaves the operator to the CPU.

    It is a Slice where all steps are reversed, and a Gather by known or computed places otherwise; of a batch, each
    sample apart. It stands in recurrent layers of both directions that TensorFlow wrote out.
    """
    x, lengths = n[0], n[1]
    time, batch = n.attr("time_axis", 0), n.attr("batch_axis", 1)
    steps, samples, known = x.shape[time], x.shape[batch], lengths.array
    if known is not None and (known == steps).all():
        return x.from_behind(time)
    if samples == 1:
        return op.Gather(x, _reversed(lengths, known, steps), axis=time)
    rows = []
    for sample in range(samples):
        row = op.Gather(x, [sample], axis=batch)
        length = op.Gather(lengths, [sample]) if known is None else lengths
        places = _reversed(length, None if known is None else known[sample : sample + 1], steps)
        rows.append(op.Gather(row, places, axis=time))
    return op.Concat(*rows, axis=batch)


def _reversed(length: GraphValue, known: NDArray[Any] | None, steps: int) -> NDArray[np.int64] | GraphValue:
    """The place from which each step of one sample comes, a vector; of the value or number of its length, [1]."""
    each = np.arange(steps)
    if known is not None:
        return np.where(each < known, known - 1 - each, each).astype(np.int64)
    return op.Where(op.Less(each, length), op.Sub(length - 1, each), each)


_STILL = 20.0
"""A gate's bias. As much as it takes in float32, and no more: the bias is quantized with the others."""


@lower("RNN")
def convert_rnn_to_gru(n: Node) -> bool:
    """Write a simple recurrent layer as a GRU whose gates stand still: z = 0 and r = 1.

    ``h' = tanh(W x + R h + b)`` is ``h' = (1 - z) tanh(W x + r (R h) + b) + z h``. The rows of the gates are zero, and
    their bias is -20 and 20, where a sigmoid is within 2e-9 of 0 and 1. QNN has no RNN, so each splits the graph in
    two; it has GRU (float16, 60 dB). Unrolled into its steps, a layer would take hundreds of nodes. Left alone: other
    activations and ``clip``, which QNN's GRU does not have; computed weights; types other than float32.
    """
    given, weights = n.attributes, [n.get(at) for at in (1, 2, 3)]
    if any(each and not (each.is_constant and each.kind == TensorProto.FLOAT) for each in weights):
        return False
    if given.get("clip") or any(name.decode().lower() != "tanh" for name in given.get("activations", [])):
        return False
    w, r, known = (each.array if each else None for each in weights)
    assert w is not None
    assert r is not None
    directions, hidden = w.shape[:2]
    bias = np.zeros((directions, 2 * hidden), np.float32) if known is None else known
    both = np.broadcast_to(np.repeat(np.array([-_STILL, _STILL], np.float32), hidden), (directions, 2 * hidden))
    # Gates are in the order z, r, h; the biases of W come before those of R.
    w, r = (np.concatenate([np.zeros_like(each), np.zeros_like(each), each], axis=1) for each in (w, r))
    b = np.concatenate([both, bias[:, :hidden], np.zeros_like(both), bias[:, hidden:]], axis=1)
    stem = n.proto.output[0] or n.proto.output[1]
    names = [n.constant(each, f"{stem}_gru_{role}").name for role, each in (("w", w), ("r", r), ("b", b))]
    kept = [entry for entry in n.proto.attribute if entry.name in ("direction", "hidden_size", "layout")]
    gru = helper.make_node("GRU", [n[0].name, *names, *n.proto.input[4:]], list(n.proto.output), n.name)
    gru.attribute.extend([*kept, helper.make_attribute("linear_before_reset", 1)])
    n.proto.CopyFrom(gru)
    return True


@lower(
    "LSTM",
    "GRU",
    "RNN",
    after={
        "write_out_rnns": "a layer that is written out has no state to take",
        "decompose_lstm_step": "its last state would be taken from a sequence of one",
    },
)
def take_last_states(n: Node) -> bool:
    """``Y, Y_h = LSTM(x) -> Y_h = Reshape(Slice(Y, the last place))``; of two directions each is taken by itself.

    QNN ends the process on a quantized GRU that gives Y_h and no Y, the form of any encoder of a whole sequence. And
    calibration sees a state once a sample, too seldom to know its range: measured apart, Y_h clips on new samples (a
    speaker encoder of two LSTM layers, w8a16: 17 dB), while as a part of Y it has the range of all places. Left alone:
    given lengths (``sequence_lens``), since a sequence then ends there; batch first (``layout``); a Y_h that nothing
    reads.
    """
    names, index = n.proto.output, n.index
    state = names[1] if len(names) > 1 else ""
    if not state or not (state in index.outputs or state in index.readers) or n.get(4) or n.attr("layout", 0):
        return False
    if not names[0]:
        names[0] = index.unused(f"{state}_places")
        known = index.types[state]
        dims = (n[0].shape[0], *n.added.shape(state))  # [places, directions, batch, hidden]
        kind = helper.make_tensor_type_proto(known.tensor_type.elem_type, dims)
        index.model.graph.value_info.append(ValueInfoProto(name=names[0], type=kind))
        n.added.know(names[0], kind)
    n.added.stem = state
    places, directions, batch, hidden = n.y.shape
    ends = [0 if direction or n.attr("direction", "") == "reverse" else places - 1 for direction in range(directions)]
    parts = [n.y.slice([place, at], [place + 1, at + 1], [0, 1]) for at, place in enumerate(ends)]
    last = parts[0] if directions == 1 else op.Concat(*parts, axis=1)
    n.become(last.reshape(directions, batch, hidden), at=1)
    names[1] = ""
    if len(names) == 2:
        del names[1:]
    return True


@lower("LSTM", after={"replace_lengths_by_gates": "lengths become gates, and a layer without them is one step"})
def decompose_lstm_step(n: Node) -> bool:
    """Write one step of an LSTM whose state is carried with the change of its state.

    Over a sequence of one place, with a computed cell state c, where ``i, o, f, g`` are the columns of ``Gemm(x, W', B)
    + MatMul(h, R')``::

        Y_c = c + (s(i) * Tanh(g) - s(-f) * c)       Y_h = Sigmoid(o) * Tanh(Y_c)
        s(v) = Exp(Min(v, 0)) / (1 + Exp(-Abs(v)))

    A model for streams hands its state from step to step, thousands of times, so every step adds its error to the next.
    HTP's Sigmoid in float16 is off by up to 6e-4: a gate that keeps all but 1 % of a cell state of 30 changes it by
    0.02 too much or too little. The loss of a gate is small, and this form has it to float16's precision; neither Exp
    is above 1. silero-vad in float16 over 500 steps: the probability of speech is off by up to 0.055 with Sigmoid, and
    0.014 so.

    Left alone: longer sequences, two directions, a state that starts from a constant, lengths, peepholes, other
    activations, `clip`, `input_forget` and `layout`, and computed weights.
    """
    types = n.index.types
    x, w, r, bias, lengths, hidden, cell, peepholes = (n.get(at) for at in range(8))
    if is_special_lstm(n.proto) or lengths or peepholes or x is None or w is None or r is None:
        return False
    if hidden is None or cell is None or not all(each.name in types for each in (x, hidden, cell)):
        return False
    weights, recurrence, biases = w.array, r.array, bias.array if bias else np.zeros((1, 1), np.float32)
    if weights is None or recurrence is None or biases is None or not x.is_f32 or len(weights) != 1 or x.shape[0] != 1:
        return False
    _, batch, size = hidden.shape
    place, before, kept = x.reshape(batch, x.shape[2]), hidden.reshape(batch, size), cell.reshape(batch, size)
    total = biases.reshape(2, -1).sum(axis=0) if bias else np.zeros(4 * size)
    columns, rows = (np.ascontiguousarray(each[0].T) for each in (weights, recurrence))
    gates = op.Gemm(place, columns, total.astype(np.float32)) + op.MatMul(before, rows)
    enter, leave, keep, new = (gates.slice([at * size], [(at + 1) * size], [1]) for at in range(4))
    after = kept + (_gate(enter) * op.Tanh(new) - _gate(-keep) * kept)
    state = op.Sigmoid(leave) * op.Tanh(after)
    shapes = [(1, 1, batch, size), (1, batch, size), (1, batch, size)]
    for at, (name, value) in enumerate(zip(n.proto.output, (state, state, after), strict=False)):
        if name:
            n.become(value.reshape(*shapes[at]), at)
    return True


def _gate(value: GraphValue) -> GraphValue:
    """A sigmoid that is as precise near 0 as the format: quotients of powers of e that are at most 1."""
    return op.Exp(op.Min(value, 0)) / (op.Exp(-op.Abs(value)) + 1)


_ACTIVATIONS = {"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh"}


@lower("RNN", after={"convert_rnn_to_gru": "a layer that can be one operator stays one"})
def write_out_rnns(n: Node) -> bool:
    """Write a simple recurrent layer that is no GRU, with another activation than Tanh or `clip`, place after place.

    For each direction, from its first place to its last, ``G = Gemm(Reshape(x, [places * batch, size]), W, B)`` and ``h
    = Relu(Clip(the rows of G for the place + Gemm(h, R)))``. QNN has no RNN, and its GRU, which a layer of Tanh
    becomes, no other activation. Left alone: activations but Relu, Sigmoid and Tanh; given lengths; batch first
    (``layout``); computed weights; types other than float32; layers of more than 512 places in all directions.
    """
    x, how = n[0], n.attributes
    weights, recurrences, given = n[1].array, n[2].array, n.get(3)
    biases = given.array if given else None
    if not x.is_f32 or n.get(4) or weights is None or recurrences is None or how.get("layout"):
        return False
    directions = range(len(weights))
    named = [each.decode().lower() for each in how.get("activations", [b"tanh" for _ in directions])]
    (places, batch, size), hidden = x.shape, recurrences.shape[-1]
    if (given and biases is None) or not {*named} <= _ACTIVATIONS.keys() or weights.dtype != np.float32:
        return False
    if places * len(weights) > 512:
        return False
    zeros = np.zeros((len(weights), hidden), np.float32)
    bias = zeros if biases is None else biases[:, :hidden] + biases[:, hidden:]
    reverse, clip, first = how.get("direction") == b"reverse", n.attr("clip", 0.0), n.get(5)
    every: list[dict[int, GraphValue]] = []
    for at in directions:
        backwards, activation = reverse or at == 1, getattr(op, _ACTIVATIONS[named[at]])
        gates = op.Gemm(x.reshape(places * batch, size), weights[at], bias[at], transB=1)
        recurrence = n.constant(recurrences[at])
        bounds = [n.constant(np.array(to, np.float32)) for to in (-clip, clip)] if clip else []
        state = first.slice([at], [at + 1], [0]).reshape(batch, hidden) if first else None
        states: dict[int, GraphValue] = {}
        for place in range(places - 1, -1, -1) if backwards else range(places):
            total = gates.slice([place * batch], [(place + 1) * batch], [0])
            total = total + op.Gemm(state, recurrence, transB=1) if state else total
            state = states[place] = activation(op.Clip(total, *bounds) if bounds else total)
        every.append(states)
    whole, last = (*n.proto.output, "")[:2]
    if whole:
        parts = [_joined([states[place] for place in range(places)], 0) for states in every]
        n.become(_joined([part.reshape(places, 1, batch, hidden) for part in parts], 1), 0)
    if last:
        ends = [states[0 if reverse or at == 1 else places - 1] for at, states in enumerate(every)]
        n.become(_joined(ends, 0).reshape(len(every), batch, hidden), 1)
    return True


def _joined(parts: list[GraphValue], axis: int) -> GraphValue:
    return op.Concat(*parts, axis=axis) if len(parts) > 1 else parts[0]
