"""Rewrites: graph changes that make a model fit for HTP and leave what it computes as it was.

A rewrite is a rule of :mod:`pipeline.graph.ir.rules`, in the file of its subject, or a module of its own where it is an
algorithm. Its ``apply(model, folder)`` changes the model in place and returns the number of changes. Where the order
matters inside a phase, ``after`` (``AFTER`` of a module) has the names of those that run before, and why.
Each requires a model as the shape stage leaves it: every dim fixed, constants as
initializers, nodes in topological order, a type for every value; `folder` holds the model's blobs. Each ensures the
same, and keeps the name of every value it doesn't replace, so that encodings found over all buckets fit each of them.
What a rewrite leaves unused is removed here, before the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


PHASES: dict[str, tuple[Rewrite, ...]] = {
    "prepare": (  # types and nodes that every other rule would have to know
        drop_idle_bounds,
        narrow_doubles,
        replace_dropouts,
        select_triangles,
    ),
    "normalise": (  # one form of integers, products and lookups
        cast_before_choosing,
        cast_by_int32,
        compare_far_numbers,
        compare_signs,
        compute_lengths_in_integers,
        decompose_einsum,
        decompose_mod,
        flatten_gather_nd,
        flatten_output_casts,
        flatten_products,
        fold_biases,
        fold_gemm_factors,
        gather_at_once,
        multiply_apart,
        multiply_transforms,
        simplify_boolean_equal,
    ),
    "fuse": (  # masks, norms and activations that exporters spell out
        bound_masked_max,
        drop_guards,
        fuse_gelu,
        fuse_layer_norm,
        fuse_rms_norm,
        make_masks_finite,
        normalize_along_last_axis,
        put_scores_first,
    ),
    "look up": (  # powers, and lookups in place of Pad, Resize and the like
        center_grids,
        compare_one_hots,
        count_indices_from_the_front,
        decompose_pow,
        divide_one,
        expand_powers,
        find_last_extremes,
        flatten_gathers,
        gather_edges,
        gather_neighbours,
        gather_pairs,
        resize_axes_apart,
        resize_by_products,
        reverse_sequences,
        sum_forwards,
        write_out_grids,
    ),
    "lower": (  # operators that QNN does not have, or computes wrongly
        add_second_taps,
        approximate_erf,
        bound_exp,
        choose_before,
        convert_group_norms,
        convolve_averages,
        crop_volumes,
        decompose_activations,
        decompose_batch_norm,
        decompose_hard_sigmoid,
        decompose_log_sums,
        decompose_reductions,
        decompose_softplus,
        decompose_swish,
        divide_log_arguments,
        drop_output_padding,
        gather_taps,
        gather_windows,
        merge_scales,
        negate_divisors,
        place_patches,
        pool_volumes,
        scale_magnitudes,
        scale_spectra,
        scale_weights,
        spread_kernels,
        stride_behind,
        sum_along_last_axis,
    ),
    "recur": (  # recurrent layers, and activations that depend on their neighbours
        bound_activations,
        convert_rnn_to_gru,
        decompose_lstm_step,
        drop_unit_axes,
        replace_lengths_by_gates,
        replace_tanh,
        separate_swish,
        take_last_states,
        widen_scales,
        write_out_rnns,
    ),
    "finish": (  # after all that look for Clips, masks, products and sums
        add_spare_columns,
        add_spare_rows,
        compare_casts,
        expand_factors,
        flatten_rows,
        merge_dims,
        put_constants_last,
        round_norm_scales,
        split_clips,
    ),
}
"""The phases in their order, each with its rewrites by name."""


def in_order(phases: Mapping[str, Sequence[Rewrite]]) -> tuple[Rewrite, ...]:
    """The rewrites phase by phase, in a phase each after those that it must follow, else by name.

    Raises:
        ValueError: a rewrite must follow one of a later phase, one that does not exist, or itself in the end.
    """
    order: dict[str, Rewrite] = {}
    for phase, members in phases.items():
        waiting = {name_of(each): each for each in members}
        while waiting:
            ready = [name for name, each in waiting.items() if must_follow(each).keys() <= order.keys()]
            if not ready:
                raise ValueError(f"phase {phase!r}: {sorted(waiting)} follow each other, or none that came before")
            order[min(ready)] = waiting.pop(min(ready))
    return tuple(order.values())


def must_follow(rewrite: Rewrite) -> Mapping[str, str]:
    """The names of the rewrites that run before this one, and why."""
    found: Mapping[str, str] = getattr(rewrite, "after", None) or getattr(rewrite, "AFTER", {})
    return found


def name_of(rewrite: Rewrite) -> str:
    """What a rewrite is called, in reports as well."""
    return rewrite.__name__.rpartition(".")[2]


REWRITES = in_order(PHASES)
"""In the order they are applied."""


def apply_all(model: ModelProto, folder: Path) -> dict[str, int]:
    """Apply every rewrite to `model` in place; returns name -> number of places changed, zeros included."""
    applied = {}
    for rewrite in REWRITES:
        count = applied[name_of(rewrite)] = rewrite.apply(model, folder)
        if count:
            prune(model)
    return applied
