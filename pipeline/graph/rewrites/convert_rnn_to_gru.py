"""Write a simple recurrent layer as a GRU whose gates stand still.

Before::

    RNN <activations: Tanh> (x, W, R, B, lengths, h)        h' = tanh(W x + R h + b)

After::

    GRU (x, W', R', B', lengths, h)                         h' = (1 - z) tanh(W x + r (R h) + b) + z h

with z = 0 and r = 1: their rows of W' and R' are zero, and their bias is -20 and 20, where a sigmoid is within 2e-9 of
0 and 1. QNN EP 2.7 has no RNN, so each splits the graph in two with the CPU in between; it has GRU (float16, 60 dB).
Unrolled into its steps, a layer would take hundreds of nodes instead.

Outputs keep their names. Left alone: other activations and ``clip``, which QNN's GRU doesn't have; weights that are
computed; types other than float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper

from pipeline.graph.ir.attributes import settings
from pipeline.graph.ir.index import GraphIndex, is_op
from pipeline.graph.ir.node_builder import Additions, each_node
from pipeline.graph.ir.traverse import input_at

_STILL = 20.0
"""A gate's bias. As much as it takes in float32, and no more: the bias is quantized with the others."""


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Rewrite an RNN that has constant weights."""
    if not _matches(added.index, node):
        return False
    weights, recurrence = (added.index.constant(name) for name in node.input[1:3])
    assert weights is not None
    assert recurrence is not None
    directions, hidden = weights.shape[:2]
    given = added.index.constant(input_at(node, 3))
    bias = np.zeros((directions, 2 * hidden), np.float32) if given is None else given
    gates = np.repeat(np.array([-_STILL, _STILL], np.float32), hidden)
    both = np.broadcast_to(gates, (directions, 2 * hidden))
    # Gates are in the order z, r, h; the biases of W come before those of R.
    constants = {
        "gru_w": _below_zeros(weights),
        "gru_r": _below_zeros(recurrence),
        "gru_b": np.concatenate([both, bias[:, :hidden], np.zeros_like(both), bias[:, hidden:]], axis=1),
    }
    stem = node.output[0] or node.output[1]
    names = [added.constant(f"{stem}_{role}", np.ascontiguousarray(array)) for role, array in constants.items()]
    kept = [entry for entry in node.attribute if entry.name in ("direction", "hidden_size", "layout")]
    gru = helper.make_node("GRU", [node.input[0], *names, *node.input[4:]], list(node.output), node.name)
    gru.attribute.extend([*kept, helper.make_attribute("linear_before_reset", 1)])
    node.CopyFrom(gru)
    return True


def _matches(index: GraphIndex, node: NodeProto) -> bool:
    if not is_op(node, "RNN"):
        return False
    given = settings(node)
    activations = given.get("activations", [])
    names = [name for name in node.input[1:4] if name]
    types = [index.initializers[name].data_type for name in names if name in index.initializers]
    return (
        types == [TensorProto.FLOAT] * len(names)
        and not given.get("clip")
        and all(name.decode().lower() == "tanh" for name in activations)
    )


def _below_zeros(weights: NDArray[Any]) -> NDArray[Any]:
    """Weights [directions, hidden, ...] as the last of three gates whose others are zero."""
    return np.concatenate([np.zeros_like(weights), np.zeros_like(weights), weights], axis=1)
