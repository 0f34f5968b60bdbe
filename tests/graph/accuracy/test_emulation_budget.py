"""One budget over the buckets of a component: who gets how many samples of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.contracts.measures import Figures, Outlier
from pipeline.contracts.verify import UNMEASURED, Basis
from pipeline.graph.accuracy.emulation_budget import SMALL_S, differences, is_doubtful, most_in_doubt, shares


def bucket(sample_s: float, db: float | None = 30.0, samples: int = 16) -> Basis:
    figures = Figures(db, db, db, "one", 0.999, 0.1)
    return Basis(samples, {"y": figures}, sample_s)


def spent_s(buckets: dict[str, Basis], counts: dict[str, int]) -> float:
    """The emulator's seconds, the second opinion of each bucket included."""
    return sum((counts[name] + 1) * each.sample_s for name, each in buckets.items())


MINILM = {"32": bucket(0.8), "64": bucket(1.6), "128": bucket(3.2)}


def test_large_buckets_share_half_of_the_budget() -> None:
    counts = shares(MINILM, 30)
    assert counts == {"32": 3, "64": 2, "128": 1}
    assert spent_s(MINILM, counts) <= 15
    assert 50 < spent_s(MINILM, shares(MINILM, 120)) <= 60


@pytest.mark.parametrize("apart", ["32", "64", "128"])
def test_the_bucket_that_differs_most_has_the_largest_share(apart: str) -> None:
    buckets = {**MINILM, apart: bucket(MINILM[apart].sample_s, 24.0)}
    usual, now = shares(MINILM, 60), shares(buckets, 60)
    assert now[apart] > usual[apart]
    own = {name: (now[name] - 1) * each.sample_s for name, each in buckets.items()}
    assert max(own, key=lambda name: own[name]) == apart


def test_one_of_each_is_run_whatever_it_takes() -> None:
    assert shares({"a": bucket(200), "b": bucket(90)}, 15) == {"a": 1, "b": 1}


def test_small_buckets_run_all_and_take_nothing_from_large_ones() -> None:
    small = bucket(SMALL_S / 5, samples=157)
    assert shares({**MINILM, "8": small}, 15) == {**shares(MINILM, 15), "8": 157}
    assert shares({"8": bucket(SMALL_S * 0.9, samples=1000)}, 15)["8"] == 132


def test_a_bucket_without_samples_takes_part_in_nothing() -> None:
    empty = Basis(UNMEASURED.samples, UNMEASURED.outputs, UNMEASURED.sample_s)
    assert shares({**MINILM, "256": empty}, 15) == {**shares(MINILM, 15), "256": 0}
    assert differences({**MINILM, "256": empty})["32"] == 0


def test_never_more_than_there_are() -> None:
    assert shares({"a": bucket(1, samples=3), "b": bucket(1)}, 40) == {"a": 3, "b": 15}


def test_a_bucket_without_a_figure_is_furthest_from_the_others() -> None:
    found = differences({"a": bucket(1, None), "b": bucket(1, 30.0), "c": bucket(1, 30.4)})
    assert found["a"] > found["c"] == found["b"] == 0.2


@pytest.mark.parametrize(
    ("db", "worst", "quantized", "doubtful"),
    [
        (33.0, 28.0, 50.0, False),
        (29.0, 28.0, 50.0, True),
        (33.0, 19.0, 50.0, True),
        (None, 28.0, 50.0, True),
        (29.0, 28.0, 30.0, False),  # quantization lost as much
        (25.0, 18.0, 30.5, False),
        (24.0, 18.0, 30.5, True),
        (23.0, 18.0, 22.0, True),  # so near a gate that it matters
        (29.0, 28.0, None, True),  # float16
    ],
)
def test_a_rung_that_loses_more_than_usual_is_a_reason_to_run_more(
    db: float | None, worst: float, quantized: float | None, doubtful: bool
) -> None:
    good, figures = bucket(1).outputs["y"], Figures(db, db, worst, "one", 0.999, 0.1)
    quantization = {"z": bucket(1, quantized).outputs["y"]} if quantized else {}
    assert is_doubtful({"y": good, "z": figures}, quantization) is doubtful


@pytest.mark.parametrize(("times", "doubtful"), [(0.01, False), (0.5, True), (None, True)])
def test_a_value_far_outside_is_a_reason_to_run_more(times: float | None, doubtful: bool) -> None:
    far = replace(bucket(1, 40.0).outputs["y"], outlier=Outlier("one", 9.0, 0.0, 1.0, times))
    assert is_doubtful({"y": far}, {}) is doubtful


def test_in_doubt_a_large_bucket_runs_as_many_as_twice_the_budget_holds() -> None:
    assert [most_in_doubt(each, 15) for each in MINILM.values()] == [16, 16, 8]
    assert most_in_doubt(bucket(90), 15) == 1
