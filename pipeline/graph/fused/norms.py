"""Normalizations that ONNX Runtime's optimizer fused with the sum in front of them, and embeddings with theirs."""

from __future__ import annotations

import numpy as np

from pipeline.graph.fused.unfused import Unfused

_EPSILON = 1e-12
"""The default of onnxruntime's operators."""


def write_skip_layer_norm(made: Unfused) -> None:
    """``LayerNormalization(x + skip + bias)``; the sum is the fourth output."""
    x, skip, gamma, beta, bias = (made.given(position) for position in range(5))
    total = _sum(made, x, skip, bias)
    made.refuse_unless(not made.asked(1) and not made.asked(2), "its mean or deviation is read")
    made.give(3, total)
    made.give(0, _layer_norm(made, total, gamma, beta))


def write_skip_rms_norm(made: Unfused) -> None:
    """``x + skip + bias`` over the root of the mean of its squares: SkipSimplifiedLayerNormalization."""
    x, skip, gamma, bias = (made.given(position) for position in range(4))
    total = _sum(made, x, skip, bias)
    made.refuse_unless(not made.asked(1) and not made.asked(2), "its mean or deviation is read")
    made.give(3, total)
    made.give(0, _rms_norm(made, total, gamma, made.number("epsilon", _EPSILON)))


def write_embeddings(made: Unfused) -> None:
    """The sum of rows of up to three tables, normalized: EmbedLayerNormalization."""
    ids, segments, words, places, kinds, gamma, beta, mask, positions = (made.given(place) for place in range(9))
    batch, length = made.dims(ids)
    total = made.op("Gather", words, ids)
    place = made.op("Gather", places, positions) if positions else made.part(places, 0, 0, length)
    total = made.op("Add", total, place)
    if segments:
        total = made.op("Add", total, made.op("Gather", kinds, segments))
    made.give(2, total)
    made.give(0, _layer_norm(made, total, gamma, beta))
    if not made.asked(1):
        return
    if mask:  # whatever mask_index_type says: onnxruntime's CPU does not read it
        made.give(1, made.op("ReduceSum", mask, made.integers(1), keepdims=0))
    else:
        made.give(1, made.constant(np.zeros(batch, np.int32)))


def _sum(made: Unfused, x: str, skip: str, bias: str) -> str:
    total = made.op("Add", x, skip)
    return made.op("Add", total, bias) if bias else total


def _layer_norm(made: Unfused, name: str, gamma: str, beta: str) -> str:
    given = (name, gamma, beta) if beta else (name, gamma)
    return made.op("LayerNormalization", *given, axis=-1, epsilon=made.number("epsilon", _EPSILON))


def _rms_norm(made: Unfused, name: str, gamma: str, epsilon: float) -> str:
    squares = made.op("Add", made.mean(made.op("Mul", name, name)), made.scalar(epsilon))
    return made.op("Mul", made.op("Div", name, made.op("Sqrt", squares)), gamma)
