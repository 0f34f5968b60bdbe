"""Write a simple recurrent layer that is no GRU, one place after the other.

Before, with another activation than Tanh, or with `clip`::

    Y, Y_h = RNN(x, W, R, B, , h)

After, for each direction, from its first place to its last::

    G = Gemm(Reshape(x, [places * batch, size]), W, B)
    h = Relu(Clip(Add(the rows of G for the place, Gemm(h, R))))
    Y = Reshape(Concat(every h)),  Y_h = the last h

QNN EP 2.7 has no RNN, and its GRU, which a layer of Tanh becomes (convert_rnn_to_gru), no other activation.

Outputs keep their names. Left alone: activations but Relu, Sigmoid and Tanh; lengths that are given; batch first
(``layout``); weights that are computed; types other than float32; layers of more than 512 places in all directions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from pipeline.graph.ir.attributes import real, settings, text
from pipeline.graph.ir.index import is_float32, is_op
from pipeline.graph.ir.node_builder import Additions, each_node
from pipeline.graph.ir.traverse import input_at

_MOST = 512
_ACTIVATIONS = {"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh"}
_LENGTHS, _STATE = 4, 5
"""Inputs of a recurrent layer. https://onnx.ai/onnx/operators/onnx__RNN.html"""


@dataclass(frozen=True)
class _Direction:
    """One direction of a layer: its weights, its bias, its activation, and whether it begins at the last place."""

    number: int
    weight: NDArray[np.float32]
    recurrence: NDArray[np.float32]
    bias: NDArray[np.float32]
    activation: str
    backwards: bool


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Write an RNN out."""
    if not is_op(node, "RNN") or not is_float32(added.index, node.input[0]) or input_at(node, _LENGTHS):
        return False
    directions = _directions(added, node)
    places = added.shape(node.input[0])[0]
    if not directions or places * len(directions) > _MOST:
        return False
    every = [_written(added, node, direction) for direction in directions]
    _give(added, node, every)
    return True


def _directions(added: Additions, node: NodeProto) -> list[_Direction]:
    """The directions of a layer; none if it can't be written out."""
    how = settings(node)
    weights, recurrences = (added.index.constant(name) for name in node.input[1:3])
    biases = added.index.constant(input_at(node, 3)) if input_at(node, 3) else None
    if weights is None or recurrences is None or how.get("layout") or (input_at(node, 3) and biases is None):
        return []
    named = [each.decode().lower() for each in how.get("activations", [b"tanh"] * len(weights))]
    if not set(named) <= _ACTIVATIONS.keys() or weights.dtype != np.float32:
        return []
    hidden = recurrences.shape[-1]
    added_up = (
        np.zeros((len(weights), hidden), np.float32) if biases is None else biases[:, :hidden] + biases[:, hidden:]
    )
    reverse = how.get("direction", b"forward") == b"reverse"
    return [
        _Direction(at, weights[at], recurrences[at], added_up[at], _ACTIVATIONS[named[at]], reverse or at == 1)
        for at in range(len(weights))
    ]


def _written(added: Additions, node: NodeProto, direction: _Direction) -> list[str]:
    """The states of one direction, [batch, hidden] each, in the order of the places."""
    stem = f"{node.output[0] or node.output[1]}_{direction.number}"
    places, batch, size = added.shape(node.input[0])
    rows = added.op("Reshape", node.input[0], added.integers(f"{stem}_dims", places * batch, size), out=f"{stem}_rows")
    weight, bias = added.constant(f"{stem}_w", direction.weight), added.constant(f"{stem}_b", direction.bias)
    gates = added.op("Gemm", rows, weight, bias, out=f"{stem}_gates", transB=1)
    recurrence = added.constant(f"{stem}_r", direction.recurrence)
    clip = real(node, "clip", 0.0)
    bounds = [added.number(f"{stem}_{name}", to) for name, to in (("low", -clip), ("high", clip))] if clip else []
    state = _first(added, node, direction.number, stem)
    found = {}
    for place in range(places - 1, -1, -1) if direction.backwards else range(places):
        ends = (("start", place * batch), ("end", (place + 1) * batch), ("axis", 0))
        here = [added.integers(f"{stem}_{name}", value) for name, value in ends]
        total = added.op("Slice", gates, *here, out=f"{stem}_in_{place}")
        if state:
            before = added.op("Gemm", state, recurrence, out=f"{stem}_back_{place}", transB=1)
            total = added.op("Add", total, before, out=f"{stem}_sum_{place}")
        if bounds:
            total = added.op("Clip", total, *bounds, out=f"{stem}_bound_{place}")
        state = added.op(direction.activation, total, out=f"{stem}_h_{place}")
        found[place] = state
    return [found[place] for place in range(places)]


def _first(added: Additions, node: NodeProto, number: int, stem: str) -> str:
    """The state that a direction begins with, [batch, hidden]; empty where it is zero."""
    given = input_at(node, _STATE)
    if not given:
        return ""
    _, batch, hidden = added.shape(given)
    ends = [
        added.integers(f"{stem}_h_{name}", to) for name, to in (("start", number), ("end", number + 1), ("axis", 0))
    ]
    part = added.op("Slice", given, *ends, out=f"{stem}_given")
    return added.op("Reshape", part, added.integers(f"{stem}_h_dims", batch, hidden), out=f"{stem}_h")


def _give(added: Additions, node: NodeProto, every: list[list[str]]) -> None:
    """Let the outputs of the layer be made of the states of its directions."""
    whole, last = node.output[0], node.output[1] if len(node.output) > 1 else ""
    batch, hidden = added.shape(every[0][0])
    ends = [states[-1] for states in every[:1]] + [states[0] for states in every[1:]]
    if text(node, "direction") == "reverse":
        ends = [every[0][0]]
    if whole:
        dims = added.integers(f"{whole}_dims", len(every[0]), 1, batch, hidden)
        parts = []
        for states in every:
            joined = added.op("Concat", *states, out=f"{whole}_joined", axis=0) if len(states) > 1 else states[0]
            parts.append((joined, dims))
        if len(parts) == 1:
            added.replace("Reshape", *parts[0], out=whole)
        else:
            turned = [added.op("Reshape", *part, out=f"{whole}_part") for part in parts]
            added.replace("Concat", *turned, out=whole, axis=1)
    if last:
        joined = added.op("Concat", *ends, out=f"{last}_joined", axis=0) if len(ends) > 1 else ends[0]
        added.replace("Reshape", joined, added.integers(f"{last}_dims", len(every), batch, hidden), out=last)


AFTER = {"convert_rnn_to_gru": "what can be one operator stays one"}
