"""Norms that exporters spell out."""

from __future__ import annotations

import numpy as np

from pipeline.graph.ir.index import opset
from pipeline.graph.ir.reductions import reduced_axes
from pipeline.graph.ir.rules import Node, GraphValue, lower, op
from pipeline.graph.ir.spelled_norms import divided, kept_mean, squared

_RMS_OPSET = 23


@lower("ReduceMean", "ReduceSum")
def fuse_rms_norm(n: Node) -> bool:
    """``x * Reciprocal(Sqrt(ReduceMean(x ** 2, -1) + epsilon)) * gamma -> RMSNormalization(x, gamma)``.

    Also ``x * x`` for the power, ``x / root`` or ``x * sum ** -0.5`` for the reciprocal, a sum divided by the width, a
    mean whose axis was dropped and comes back, and factors in any order. Before opset 23 it is onnxruntime's
    SimplifiedLayerNormalization. Without a constant gamma, ones stand in its place.

    HTP (2.51, all architectures, emulated) has one operator for it. Spelled out, the squares have encodings of their
    own, overflow in float16, and some channels of a trained model are many times the others (SQNR, uint16 and
    float16)::

        largest channel   spelled out        fused
        1                 64.0    64.8 dB    81.7    68.6 dB
        20                43.7    64.4       69.9    69.0
        300               35.0    27.9       45.9    66.7
        3000              25.6    -1.4       25.6    67.9

    With a Reciprocal and activations of 0.05 it has 1 dB spelled out. Left alone: a mean over other axes; a value in
    between that something else reads; another term than a positive constant.
    """
    source = squared(n.index, n.proto.input[0])
    if source is None or source not in n.index.types:
        return False
    x = GraphValue(n.added, source)
    if reduced_axes(n.index, n.proto) != (len(x.shape) - 1,):
        return False
    mean = kept_mean(n.index, n.proto)
    shifted = GraphValue(n.added, mean).reader("Add") if mean else None
    if mean is None or shifted is None:
        return False
    epsilon, normed = shifted.other(GraphValue(n.added, mean)).scalar, divided(n.index, shifted.y.name)
    if epsilon is None or not 0 < epsilon < np.inf or normed is None:
        return False
    last = Node(n.added, normed)
    if not (last[0].name == source if last.kind == "Div" else last.reads(x)):
        return False
    scaled = last.y.reader("Mul")
    gamma = scaled.other(last.y) if scaled else None
    if scaled and gamma and _is_gamma(gamma, x.shape):
        last = scaled
    else:
        gamma = None
    fused = op.RMSNormalization if opset(n.index.model) >= _RMS_OPSET else op.SimplifiedLayerNormalization
    n.added.stem = last.y.name
    return last.become(fused(x, _factor(last, gamma, x), axis=-1, epsilon=epsilon, name=last.name))


def _is_gamma(gamma: GraphValue, dims: tuple[int, ...]) -> bool:
    if not gamma.is_constant:
        return False
    own = gamma.shape
    return (not own or own[-1] in (1, dims[-1])) and len(own) <= len(dims) and set(own[:-1]) <= {1}


def _factor(last: Node, gamma: GraphValue | None, x: GraphValue) -> GraphValue:
    """A constant of [width] that is the norm's factor."""
    width, values = x.shape[-1], gamma.array if gamma else None
    if gamma and values is not None and values.shape == (width,):
        return gamma
    factor = np.ones(width, x.dtype) if values is None else np.broadcast_to(values.reshape(-1), width)
    return last.constant(np.ascontiguousarray(factor), f"{last.y.name}_gamma")
