"""Rewrites: graph changes that make a model fit for HTP and leave what it computes as it was.

A rewrite is one module with two names: ``NAME``, and ``apply(model, folder)``, which changes the model in place and
returns how often it did. Each requires a model as the shape stage leaves it: every dim fixed, constants as
initializers, nodes in topological order, a type for every value; `folder` holds the model's blobs. Each ensures the
same, and keeps the name of every value it doesn't replace, so that encodings found over all buckets fit each of them.
What a rewrite leaves unused is removed here, once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from onnx import ModelProto

from pipeline.graph.index import prune
from pipeline.graph.rewrites import (
    apart_swish,
    divide_one,
    drop_guards,
    drop_unit_axes,
    finite_masks,
    flat_gather_nd,
    fuse_gelu,
    fuse_layer_norm,
    fuse_rms_norm,
    gather_pairs,
    integer_lengths,
    last_states,
    lengths_to_gates,
    masked_max,
    merge_scales,
    norms_by_instance,
    plain_activations,
    plain_einsum,
    plain_equal,
    plain_reductions,
    plain_softplus,
    plain_swish,
    rnn_to_gru,
    scores_first,
    split_batch_norm,
    tanh_by_sigmoid,
)


class Rewrite(Protocol):
    """What a module in this package looks like."""

    NAME: str

    def apply(self, model: ModelProto, folder: Path) -> int:
        """Change `model` in place; return the number of places changed."""


REWRITES: tuple[Rewrite, ...] = (
    integer_lengths,
    plain_equal,
    flat_gather_nd,
    plain_einsum,
    finite_masks,
    drop_guards,
    masked_max,
    scores_first,
    fuse_gelu,
    fuse_layer_norm,
    fuse_rms_norm,
    divide_one,
    gather_pairs,
    split_batch_norm,
    merge_scales,
    plain_activations,
    plain_reductions,
    norms_by_instance,
    plain_softplus,
    plain_swish,
    rnn_to_gru,
    lengths_to_gates,
    last_states,
    tanh_by_sigmoid,
    apart_swish,
    drop_unit_axes,
)
"""In the order they are applied."""


def apply_all(model: ModelProto, folder: Path) -> dict[str, int]:
    """Apply every rewrite to `model` in place; returns name -> number of places changed, zeros included."""
    applied = {rewrite.NAME: rewrite.apply(model, folder) for rewrite in REWRITES}
    if any(applied.values()):
        prune(model)
    return applied
