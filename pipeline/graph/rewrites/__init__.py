"""Rewrites: graph changes that make a model fit for HTP and leave what it computes as it was.

A rewrite is a rule of :mod:`pipeline.graph.ir.rules`, in the file of its subject, or a module of its own where it is an
algorithm. Its ``apply(model, folder)`` changes the model in place and returns the number of changes. Where the order
matters, ``after`` (``AFTER`` of a module) has the names of those that run before, and why.
Each requires a model as the shape stage leaves it: every dim fixed, constants as
initializers, nodes in topological order, a type for every value; `folder` holds the model's blobs. Each ensures the
same, and keeps the name of every value it doesn't replace, so that encodings found over all buckets fit each of them.
What a rewrite leaves unused is removed here, before the next.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from onnx import ModelProto

from pipeline.graph.ir.index import prune
from pipeline.graph.rewrites import (
    cast_before_choosing,
    compute_lengths_in_integers,
    count_indices_from_the_front,
    decompose_einsum,
    drop_guards,
    drop_idle_bounds,
    gather_at_once,
    make_masks_finite,
    merge_dims,
    merge_scales,
    multiply_transforms,
    narrow_doubles,
    replace_lengths_by_gates,
    round_norm_scales,
    scale_weights,
)
from pipeline.graph.rewrites.activations import (
    approximate_erf,
    bound_activations,
    bound_exp,
    decompose_activations,
    decompose_hard_sigmoid,
    decompose_pow,
    decompose_softplus,
    decompose_swish,
    divide_log_arguments,
    divide_one,
    expand_powers,
    fuse_gelu,
    replace_tanh,
    separate_swish,
    split_clips,
)
from pipeline.graph.rewrites.choices import (
    choose_before,
    put_scores_first,
    replace_dropouts,
    select_triangles,
)
from pipeline.graph.rewrites.convolutions import (
    add_second_taps,
    crop_volumes,
    drop_output_padding,
    fold_biases,
    gather_taps,
    place_patches,
    spread_kernels,
    stride_behind,
)
from pipeline.graph.rewrites.gathers import (
    add_spare_rows,
    flatten_gather_nd,
    flatten_gathers,
    gather_pairs,
)
from pipeline.graph.rewrites.grids import (
    center_grids,
    write_out_grids,
)
from pipeline.graph.rewrites.integers import (
    cast_by_int32,
    compare_casts,
    compare_far_numbers,
    compare_one_hots,
    compare_signs,
    decompose_mod,
    flatten_output_casts,
    negate_divisors,
    simplify_boolean_equal,
)
from pipeline.graph.rewrites.norms import (
    convert_group_norms,
    decompose_batch_norm,
    fuse_layer_norm,
    fuse_rms_norm,
    normalize_along_last_axis,
)
from pipeline.graph.rewrites.pads import (
    gather_edges,
)
from pipeline.graph.rewrites.pools import (
    convolve_averages,
    gather_windows,
    pool_volumes,
)
from pipeline.graph.rewrites.products import (
    add_spare_columns,
    expand_factors,
    flatten_products,
    flatten_rows,
    fold_gemm_factors,
    multiply_apart,
    put_constants_last,
    widen_scales,
)
from pipeline.graph.rewrites.recurrent import (
    convert_rnn_to_gru,
    decompose_lstm_step,
    reverse_sequences,
    take_last_states,
    write_out_rnns,
)
from pipeline.graph.rewrites.reductions import (
    bound_masked_max,
    decompose_log_sums,
    decompose_reductions,
    drop_unit_axes,
    find_last_extremes,
    sum_along_last_axis,
    sum_forwards,
)
from pipeline.graph.rewrites.resizes import (
    gather_neighbours,
    resize_axes_apart,
    resize_by_products,
)
from pipeline.graph.rewrites.spectra import (
    scale_magnitudes,
    scale_spectra,
)


class Rewrite(Protocol):
    """What a module in this package looks like."""

    __name__: str

    def apply(self, model: ModelProto, folder: Path, /) -> int:
        """Change `model` in place; return the number of places changed."""


REWRITES: tuple[Rewrite, ...] = (
    narrow_doubles,  # before all that look at constants of float32
    replace_dropouts,
    drop_idle_bounds,  # before masks are looked for: an infinity that bounds nothing is none
    select_triangles,
    fold_biases,
    fold_gemm_factors,  # before all that look for products with constants
    multiply_apart,  # behind what leaves no factors
    compute_lengths_in_integers,
    compare_far_numbers,
    cast_before_choosing,  # behind what casts integers to floats in place of what was rounded
    decompose_mod,
    compare_signs,
    cast_by_int32,
    simplify_boolean_equal,
    flatten_gather_nd,
    gather_at_once,
    flatten_output_casts,
    decompose_einsum,
    multiply_transforms,  # before all that look for products with weights
    flatten_products,  # behind what writes an Einsum as one
    make_masks_finite,
    drop_guards,
    bound_masked_max,
    put_scores_first,
    fuse_gelu,
    fuse_layer_norm,
    fuse_rms_norm,
    normalize_along_last_axis,  # behind the fusion of norms
    decompose_pow,  # behind the fusions, which look for the powers in norms and activations
    expand_powers,
    divide_one,
    gather_pairs,
    gather_edges,
    gather_neighbours,
    resize_by_products,
    resize_axes_apart,
    write_out_grids,
    center_grids,
    find_last_extremes,
    reverse_sequences,
    sum_forwards,
    flatten_gathers,  # behind what writes lookups in place of a Pad or a Resize
    count_indices_from_the_front,
    compare_one_hots,  # behind what counts their indices from the front
    sum_along_last_axis,
    convolve_averages,
    pool_volumes,
    gather_windows,  # behind what leaves planes
    place_patches,
    spread_kernels,  # behind what writes a transposed convolution
    drop_output_padding,  # behind what leaves no dilations
    crop_volumes,  # behind what makes pads differ
    gather_taps,
    stride_behind,  # behind what writes an average as a convolution in groups
    add_second_taps,
    decompose_batch_norm,
    merge_scales,
    scale_weights,  # behind the merging of factors, of which it folds one
    decompose_activations,
    approximate_erf,
    choose_before,  # behind all that write a Sqrt or Log
    decompose_reductions,
    scale_spectra,  # behind all that write squares and their sums
    scale_magnitudes,  # behind all that write squares and their sums
    divide_log_arguments,
    convert_group_norms,
    decompose_softplus,
    decompose_swish,
    decompose_hard_sigmoid,
    decompose_log_sums,
    bound_exp,  # behind all that write an Exp: powers of constants, LogSoftmax
    negate_divisors,  # behind all that divide integers
    convert_rnn_to_gru,
    write_out_rnns,
    replace_lengths_by_gates,
    decompose_lstm_step,  # before its last state is taken from a sequence of one
    take_last_states,
    replace_tanh,
    bound_activations,  # behind all that write a Sigmoid or Tanh
    separate_swish,
    drop_unit_axes,
    widen_scales,  # behind all that look for products with one number
    split_clips,  # behind what looks for a Clip
    compare_casts,  # behind all that look for masks
    flatten_rows,  # behind all that look for products, and for what reads them
    add_spare_rows,  # behind all that write lookups
    merge_dims,  # behind all, of which some write more dims
    expand_factors,  # behind all that reshape factors
    add_spare_columns,  # behind all that reshape around products
    put_constants_last,  # behind all that write sums
    round_norm_scales,  # behind all, which would copy the weights that it makes
)
"""In the order they are applied."""


def name_of(rewrite: Rewrite) -> str:
    """What a rewrite is called, in reports as well."""
    return rewrite.__name__.rpartition(".")[2]


def apply_all(model: ModelProto, folder: Path) -> dict[str, int]:
    """Apply every rewrite to `model` in place; returns name -> number of places changed, zeros included."""
    applied = {}
    for rewrite in REWRITES:
        count = applied[name_of(rewrite)] = rewrite.apply(model, folder)
        if count:
            prune(model)
    return applied
