"""What a plan of buckets is made from, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.contracts import quantize
from pipeline.contracts.quantize import ConstantCount
from pipeline.errors import ConfigError
from pipeline.model import Manifest
from pipeline.propose.bucket_command import _mean_bits
from pipeline.propose.bucket_cost import ComponentCost, ShapedBucket, binary_bytes
from pipeline.propose.bucket_report import bucket_report, suggested
from pipeline.propose.lengths import KnownLengths, of_file
from pipeline.qnn.compiling.pack_size import Graph
from tests.support.project import Project


def shaped(work: int, **axes: int) -> ShapedBucket:
    return ShapedBucket(axes, work, Graph(nodes=100, elements=work, blobs={"weights.bin": 4_000_000}))


def square(length: int) -> int:
    return 1000 * length + 7 * length * length


def encoder(*lengths: int) -> ComponentCost:
    return ComponentCost([shaped(square(length), sequence=length) for length in lengths])


def test_work_between_buckets_is_what_the_graph_would_take() -> None:
    cost = encoder(32, 64, 128)
    assert [cost.work({"sequence": length}) for length in (32, 50, 100, 128)] == [
        square(length) for length in (32, 50, 100, 128)
    ]
    works = [cost.work({"sequence": length}) for length in range(1, 200)]
    assert works == sorted(works)
    assert encoder(64).work({"sequence": 32}) == square(64) // 2


def test_two_axes_go_by_their_product_and_axes_of_others_do_not_count() -> None:
    cost = ComponentCost([shaped(1000, height=10, width=10), shaped(8000, height=20, width=40)])
    assert cost.work({"height": 10, "width": 20, "text": 99}) == 2000


def test_packed_buckets_have_their_weights_once() -> None:
    costs = {"encoder": encoder(32, 64, 128)}
    points = [{"sequence": length} for length in (32, 128)]
    alone, packed = (binary_bytes(costs, points, form) for form in ("separate", "buckets"))
    assert 2_000_000 < alone < 3_000_000, "8 bits for each of 32"
    assert packed < alone - 900_000


def test_of_a_model_that_is_built_the_bytes_of_its_weights_are_known() -> None:
    """Tables have 16 bits where other weights have 8."""
    counts = {"int8": ConstantCount(36, 1_000_000), "uint16": ConstantCount(2, 2_000_000)}
    facts = quantize.PartFacts((), (), "w8a16", 1, (), counts, ())
    made = quantize.Facts("w8a16", {"32": quantize.Part({}, facts)})
    assert _mean_bits(Manifest("quantize", "key", {}, made.to_json()), 8_000_000) == 12
    assert ComponentCost(encoder(32).buckets, 12).graph({"sequence": 32}).constant_bytes == 1_500_000


def test_one_bucket_more_has_to_be_worth_it() -> None:
    assert suggested([100, 60, 50, 46, 20]) == 5
    assert suggested([100, 60, 55, 53]) == 2
    assert suggested([7]) == 1


def test_where_the_truth_is_exact_every_length_is_a_bucket() -> None:
    lengths = KnownLengths(("sequence",), [(10,)] * 5 + [(60,)] + [(12,)] * 2, {"encoder": 1.0}, "8 lengths")
    text = bucket_report("mine", lengths, {"encoder": encoder(32, 64, 128)}, [(10,), (64,)], ["encoder"])
    assert "truth: exact of encoder: a bucket takes samples of exactly its lengths" in text
    assert "3 samples have the lengths of no bucket of the config as it is" in text
    assert "\nbuckets: {sequence: [10, 12, 60]}\n" in text
    assert "# one sample alone, so that none is held out to prove it: 60" in text
    assert "one more would save" not in text
    pairs = KnownLengths(("h", "w"), [(8, 4), (4, 8), (8, 4), (4, 8)], {"encoder": 1.0}, "4 lengths")
    cost = ComponentCost([shaped(1000, h=4, w=8), shaped(8000, h=8, w=16)])
    assert "buckets: {h: [4, 8], w: [8, 4]}" in bucket_report("mine", pairs, {"encoder": cost}, [(4, 8)], ["encoder"])


def test_the_report_has_a_table_a_curve_and_a_line_for_the_config() -> None:
    lengths = KnownLengths(("sequence",), [(10,)] * 50 + [(60,)] * 50, {"encoder": 1.0}, "100 lengths", cut=3)
    text = bucket_report("mine", lengths, {"encoder": encoder(32, 64, 128)}, [(32,), (64,), (128,)])
    assert "buckets of mine, for 100 lengths: sequence 10 to 60" in text
    assert "3 samples were cut to the largest bucket" in text
    assert "buckets: {sequence: [10, 60]}" in text
    assert "now  32, 64, 128" in text
    assert "keep sequence 128" in text
    assert "2                                            0.0%" in text


def test_two_axes_grow_together() -> None:
    lengths = KnownLengths(("h", "w"), [(1, 2), (4, 4)] * 9, {"net": 1.0}, "18 lengths")
    text = bucket_report("mine", lengths, {"net": ComponentCost([shaped(64, h=4, w=4)])}, [(2, 2)])
    assert "both axes grow together" in text
    assert "some samples fit no bucket of the config as it is" in text
    assert "buckets: {h: [1, 4], w: [2, 4]}" in text


def test_lengths_are_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "l.txt").write_text("3 4\n\n5,6\n7;8\n")
    assert of_file(("a", "b"), tmp_path / "l.txt", ["net"]).samples == [(3, 4), (5, 6), (7, 8)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("3\nlong\n", "l.txt:2"),
        ("3 4\n", "'3 4' is not a whole number"),
        ("-3\n", "'-3' is not a whole number"),
        ("0\n", "'0' is no length"),
        ("", "l.txt holds no lengths"),
        ("\xff", "is not a whole number"),
    ],
)
def test_what_is_no_length_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "l.txt").write_text(text)
    with pytest.raises(ConfigError) as caught:
        of_file(("sequence",), tmp_path / "l.txt", ["net"])
    assert said in str(caught.value)
    with pytest.raises(ConfigError, match=rf"the lengths in {tmp_path}/none\.txt can't be read"):
        of_file(("sequence",), tmp_path / "none.txt", ["net"])


@pytest.mark.slow
def test_a_model_is_planned_by_its_calibration_set_or_by_a_file(tiny_built: Project, tmp_path: Path) -> None:
    project = tiny_built.copy(tmp_path / "project", tmp_path / "store")
    run = project.doit("buckets:tiny")
    assert "buckets of tiny, for the 4 samples of the calibration set: sequence 3 to 6" in run.text
    assert "buckets: {sequence: [" in run.text
    assert not run.built
    (tmp_path / "l.txt").write_text("5\n9\n")
    assert "2 lengths of l.txt" in project.doit("buckets:tiny", "--lengths", str(tmp_path / "l.txt")).text
    wrong = project.doit("buckets:tiny", "--lengths", "none.txt", check=False)
    assert wrong.status == 10
    assert "the lengths in none.txt can't be read" in wrong.text
