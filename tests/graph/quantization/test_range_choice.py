from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.graph.quantization.calibration.histogram import SIDE, Histogram
from pipeline.graph.quantization.calibration.range_choice import MINMAX, Method
from pipeline.graph.quantization.calibration.ranges import Range
from pipeline.graph.quantization.weights.weight_encodings import affine, limits


def counted(*arrays: NDArray[Any]) -> Histogram:
    histogram = Histogram()
    for array in arrays:
        histogram.add(array.astype(np.float32))
    return histogram


def bell(count: int, seed: int = 0) -> NDArray[Any]:
    return np.random.default_rng(seed).normal(size=count).astype(np.float32)


def test_neither_order_nor_grouping_shows() -> None:
    numbers = np.concatenate([bell(5000), 300 * bell(50, 1), 1e-5 * bell(500, 2), np.zeros(70)])
    shuffled = np.random.default_rng(3).permutation(numbers)

    at_once = counted(numbers)
    for pieces in (np.split(numbers, 20), np.split(shuffled, 4), [shuffled[::-1]]):
        other = counted(*pieces)
        np.testing.assert_array_equal(other.counts, at_once.counts)
        np.testing.assert_array_equal(other.edges, at_once.edges)
        assert (other.valid, other.valid_zeros) == (at_once.valid, at_once.valid_zeros)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_what_two_have_counted_is_counted_together(order: tuple[int, int]) -> None:
    parts = [np.concatenate([bell(5000), np.zeros(70)]), 300 * bell(50, 1)]
    joined, other = (counted(parts[place]) for place in order)
    unchanged = other.counts.copy()

    joined.join(other)

    at_once = counted(*parts)
    np.testing.assert_array_equal(joined.counts, at_once.counts)
    np.testing.assert_array_equal(joined.edges, at_once.edges)
    assert (joined.valid, joined.valid_zeros) == (at_once.valid, at_once.valid_zeros)
    np.testing.assert_array_equal(other.counts, unchanged)


def test_counts_are_those_of_bins_as_wide_from_the_start() -> None:
    numbers = np.concatenate([bell(3000), [1024.0, -1024.0]])
    histogram = counted(*np.array_split(numbers, 7))
    expected = np.histogram(numbers.astype(np.float32), histogram.edges)[0]
    np.testing.assert_array_equal(histogram.counts, expected)
    assert histogram.counts.sum() == numbers.size
    assert histogram.counts.nbytes == 2 * SIDE * 8


def test_percentile_leaves_out_the_rarest_at_both_ends() -> None:
    numbers = np.concatenate([np.linspace(-1, 3, 100_001), [-50, 60]])
    chosen = Method("percentile", 99.0).choose(counted(numbers), Range.of(numbers), 8)
    assert chosen.low == pytest.approx(-0.98, abs=0.04)
    assert chosen.high == pytest.approx(2.98, abs=0.04)
    assert Method("percentile", 100.0).choose(counted(numbers), Range.of(numbers), 8) == Range(-50, 60)


def test_percentile_of_one_sided_values_keeps_zero() -> None:
    numbers = np.maximum(bell(20_000), 0)
    chosen = Method("percentile", 99.0).choose(counted(numbers), Range.of(numbers), 8)
    assert chosen.low == 0
    assert 2 < chosen.high < numbers.max()


def loss(numbers: NDArray[Any], covers: Range, bits: int) -> float:
    scale, zero = affine(covers, f"uint{bits}")
    low, high = limits(f"uint{bits}")
    rounded = (np.clip(np.rint(numbers / scale) + zero, low, high) - zero) * scale
    return float(((numbers - rounded) ** 2).sum())


@pytest.mark.parametrize("bits", [4, 8])
def test_mse_loses_no_more_than_the_best_of_many_ranges(bits: int) -> None:
    numbers = np.concatenate([bell(50_000), 20 * bell(8, 1)])
    measured = Range.of(numbers)
    chosen = Method("mse").choose(counted(numbers), measured, bits)
    shares = np.linspace(0.02, 1, 60)
    best = min(loss(numbers, Range(a * measured.low, b * measured.high), bits) for a in shares for b in shares)
    assert loss(numbers, chosen, bits) < 1.1 * best
    assert loss(numbers, chosen, bits) < 0.95 * loss(numbers, measured, bits)


def test_the_range_for_16_bits_is_the_wider() -> None:
    numbers = np.concatenate([bell(50_000), 20 * bell(8, 1)])
    narrow, wide = (Method("mse").choose(counted(numbers), Range.of(numbers), bits) for bits in (8, 16))
    assert wide.width > narrow.width


def test_entropy_cuts_outliers_off_and_keeps_what_has_none() -> None:
    numbers = np.concatenate([bell(50_000), [90.0]])
    chosen = Method("entropy").choose(counted(numbers), Range.of(numbers), 8)
    assert 3 < chosen.high < 70
    flat = np.linspace(-2, 5, 40_000)
    assert Method("entropy").choose(counted(flat), Range.of(flat), 8).width > 6.5


@pytest.mark.parametrize("method", [MINMAX, Method("percentile", 50.0), Method("mse"), Method("entropy")])
def test_a_range_is_never_empty(method: Method) -> None:
    sparse = np.zeros(10_000)
    sparse[7] = 3.0
    assert method.choose(counted(sparse), Range.of(sparse), 8) == Range(0, 3)
    assert method.choose(counted(np.zeros(5)), Range(0, 0), 8) == Range(0, 0)


def test_padding_does_not_make_a_range_narrower() -> None:
    tail = np.concatenate([bell(1000), [8.0]])
    alone = Histogram()
    alone.add(tail)
    padded = Histogram()
    padded.add(np.concatenate([tail, np.zeros(100_000)]), valid=tail.size / (tail.size + 100_000))

    measured = Range.of(tail)
    for method in (Method("percentile", 99.9), Method("mse")):
        assert method.choose(padded, measured, 8).width == pytest.approx(
            method.choose(alone, measured, 8).width, rel=0.2
        )
    # A mask's filler in the padding is kept: attention relies on it.
    masked = Histogram()
    masked.add(np.concatenate([tail, np.full(3000, -100.0)]), valid=0.25)
    for method in (Method("percentile", 99.9), Method("mse"), Method("entropy")):
        assert method.choose(masked, Range(-100, measured.high), 8).low < -99
