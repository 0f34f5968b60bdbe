"""The order of rewrites, which phases and declared predecessors decide."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.graph.ir.rules import Node, lower
from pipeline.graph.rewrites import PHASES, REWRITES, in_order, must_follow, name_of

ORDER = [
    "narrow_doubles", "drop_idle_bounds", "replace_dropouts", "select_triangles", "cast_by_int32",
    "compare_far_numbers", "compute_lengths_in_integers", "cast_before_choosing", "compare_signs",
    "decompose_einsum", "decompose_mod", "flatten_gather_nd", "flatten_output_casts", "fold_biases",
    "fold_gemm_factors", "gather_at_once", "multiply_apart", "multiply_transforms", "flatten_products",
    "simplify_boolean_equal", "bound_masked_max", "fuse_gelu", "fuse_layer_norm", "fuse_rms_norm",
    "make_masks_finite", "drop_guards", "normalize_along_last_axis", "put_scores_first", "center_grids",
    "decompose_pow", "divide_one", "expand_powers", "find_last_extremes", "gather_edges", "gather_neighbours",
    "flatten_gathers", "gather_pairs", "resize_axes_apart", "resize_by_products", "reverse_sequences",
    "count_indices_from_the_front", "compare_one_hots", "sum_forwards", "write_out_grids", "approximate_erf",
    "convert_group_norms", "convolve_averages", "add_second_taps", "decompose_activations", "choose_before",
    "decompose_batch_norm", "decompose_log_sums", "decompose_reductions", "decompose_softplus", "decompose_swish",
    "gather_taps", "merge_scales", "decompose_hard_sigmoid", "divide_log_arguments", "negate_divisors",
    "place_patches", "pool_volumes", "gather_windows", "scale_spectra", "bound_exp", "scale_magnitudes",
    "scale_weights", "spread_kernels", "drop_output_padding", "crop_volumes", "stride_behind",
    "sum_along_last_axis", "convert_rnn_to_gru", "drop_unit_axes", "replace_lengths_by_gates",
    "decompose_lstm_step", "widen_scales", "write_out_rnns", "replace_tanh", "bound_activations", "separate_swish",
    "take_last_states", "add_spare_rows", "compare_casts", "flatten_rows", "merge_dims", "expand_factors",
    "add_spare_columns", "put_constants_last", "round_norm_scales", "split_clips",
]  # fmt: skip


def test_the_order_is_the_one_that_was_looked_at() -> None:
    assert [name_of(rewrite) for rewrite in REWRITES] == ORDER, "look at the new order, then write it here"


def test_each_rewrite_has_a_phase_and_a_reason_for_each_that_it_follows() -> None:
    names = [name_of(each) for members in PHASES.values() for each in members]
    assert len(names) == len({*names}) == len(REWRITES)
    for rewrite in REWRITES:
        for earlier, why in must_follow(rewrite).items():
            assert why
            assert ORDER.index(earlier) < ORDER.index(name_of(rewrite)), f"must follow {earlier}: {why}"


@lower("Abs", after={"second": "it is wanted"})
def first(_: Node) -> bool:
    return False


@lower("Abs")
def second(_: Node) -> bool:
    return False


@lower("Abs", after={"third": "it is itself"})
def third(_: Node) -> bool:
    return False


def test_rules_follow_those_that_they_name_else_the_alphabet() -> None:
    assert [name_of(each) for each in in_order({"one": (second, first)})] == ["second", "first"]
    assert [name_of(each) for each in in_order({"one": (second,), "two": (first,)})] == ["second", "first"]


@pytest.mark.parametrize("phases", [{"one": (first,), "two": (second,)}, {"one": (third,)}])
def test_an_order_that_cannot_be_is_refused(phases: dict[str, tuple[object, ...]]) -> None:
    with pytest.raises(ValueError, match="follow each other"):
        in_order(phases)  # type: ignore[arg-type]


def test_every_rewrite_is_in_the_docs() -> None:
    text = (Path(__file__).parents[3] / "docs" / "rewrites.md").read_text()
    assert not [name for name in map(name_of, REWRITES) if f"`{name}`" not in text]
