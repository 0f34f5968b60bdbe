"""One budget over the buckets of a component: who gets how many samples of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.contracts.measures import Figures, Outlier
from pipeline.contracts.verify import UNMEASURED, Basis
from pipeline.graph.accuracy.emulation.emulation_budget import SMALL_S, is_doubtful, most_in_doubt, shares


def bucket(sample_s: float, samples: int = 16) -> Basis:
    return Basis(samples, sample_s)


def figure(db: float | None) -> Figures:
    return Figures(db, db, db, "one", 0.999, 0.1)


def spent_s(buckets: dict[str, Basis], counts: dict[str, int]) -> float:
    """The emulator's seconds, the second opinion of each bucket included."""
    return sum((counts[name] + 1) * each.sample_s for name, each in buckets.items())


MINILM = {"32": bucket(0.8), "64": bucket(1.6), "128": bucket(3.2)}


def test_large_buckets_share_half_of_the_budget() -> None:
    counts = shares(MINILM, 30)
    assert counts == {"32": 3, "64": 2, "128": 1}
    assert spent_s(MINILM, counts) <= 15
    assert 30 < spent_s(MINILM, shares(MINILM, 80)) <= 40


def test_all_are_run_where_they_fit() -> None:
    nine = bucket(3.0, samples=9)
    assert shares({"a": nine}, 30) == {"a": 9}
    assert shares({"a": nine}, 29)["a"] < 9
    assert shares({"a": bucket(1.0), "b": bucket(0.5, samples=4)}, 30) == {"a": 16, "b": 4}


def test_a_component_in_float_has_the_larger_share() -> None:
    """A detector of nine samples that take 9 seconds each: two of them said 22.5 dB, and all nine 13.5."""
    detector = {"a": bucket(9.0, samples=9)}
    assert shares(detector, 30)["a"] == 1
    assert shares(detector, 30, in_float=True)["a"] == 5


def test_one_of_each_is_run_whatever_it_takes() -> None:
    assert shares({"a": bucket(200), "b": bucket(90)}, 15) == {"a": 1, "b": 1}


def test_small_buckets_run_all_and_take_nothing_from_large_ones() -> None:
    small = bucket(SMALL_S / 5, samples=157)
    assert shares({**MINILM, "8": small}, 15) == {**shares(MINILM, 15), "8": 157}
    assert shares({"8": bucket(SMALL_S * 0.9, samples=1000)}, 15)["8"] == 132


def test_a_bucket_without_samples_takes_part_in_nothing() -> None:
    empty = Basis(UNMEASURED.samples, UNMEASURED.sample_s)
    assert shares({**MINILM, "256": empty}, 15) == {**shares(MINILM, 15), "256": 0}


def test_never_more_than_there_are() -> None:
    assert shares({"a": bucket(1, samples=3), "b": bucket(1)}, 40) == {"a": 3, "b": 16}


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
    quantization = {"z": figure(quantized)} if quantized else {}
    measured = {"y": figure(30.0), "z": Figures(db, db, worst, "one", 0.999, 0.1)}
    assert is_doubtful(measured, quantization, 15, 16) is doubtful


def test_few_samples_near_a_gate_are_a_reason_to_run_more() -> None:
    """Gates ask for 25.3 dB of 3 of 16 samples."""
    near, quantization = {"y": figure(25.1)}, {"y": figure(26.0)}
    assert is_doubtful(near, quantization, 3, 16)
    assert not is_doubtful(near, quantization, 12, 16)


@pytest.mark.parametrize(("times", "doubtful"), [(0.01, False), (0.5, True), (None, True)])
def test_a_value_far_outside_is_a_reason_to_run_more(times: float | None, doubtful: bool) -> None:
    far = replace(figure(40.0), outlier=Outlier("one", 9.0, 0.0, 1.0, times))
    assert is_doubtful({"y": far}, {}, 16, 16) is doubtful


def test_in_doubt_a_large_bucket_runs_as_many_as_twice_the_budget_holds() -> None:
    assert [most_in_doubt(each, 15) for each in MINILM.values()] == [16, 16, 8]
    assert most_in_doubt(bucket(90), 15) == 1
