"""Plans of buckets against all that there are, on random distributions."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence

import pytest

from pipeline.propose import bucket_plan
from pipeline.propose.bucket_plan import PairWork, Work, plan_lengths, plan_pairs


def cost(lengths: Sequence[int], buckets: Sequence[int], work: Work) -> int:
    return sum(work(min(size for size in buckets if size >= length)) for length in lengths)


def linear(length: int) -> int:
    return length


def square(length: int) -> int:
    return 40 * length + length * length


def steps(length: int) -> int:
    return -(-length // 8) * 8


@pytest.mark.parametrize("work", [linear, square, steps])
@pytest.mark.parametrize("seed", range(12))
def test_of_one_axis_no_choice_of_lengths_costs_less(seed: int, work: Work) -> None:
    rng = random.Random(seed)
    values = rng.sample(range(1, 60), rng.randint(1, 11))
    lengths = [rng.choice(values) for _ in range(rng.randint(1, 60))]
    different = sorted(set(lengths))
    plans = plan_lengths(lengths, work)
    assert len(plans) == min(8, len(different))
    for count, plan in enumerate(plans, 1):
        buckets = [point[0] for point in plan.points]
        assert len(buckets) == count
        assert sorted(set(buckets)) == buckets
        assert plan.work == cost(lengths, buckets, work)
        others = itertools.combinations(different[:-1], count - 1)
        assert plan.work == min(cost(lengths, (*other, different[-1]), work) for other in others)


def pair_cost(pairs: Sequence[tuple[int, int]], buckets: Sequence[tuple[int, int]], work: PairWork) -> int:
    total = 0
    for one, two in pairs:
        holding = [bucket for bucket in buckets if bucket[0] >= one and bucket[1] >= two]
        total += min(work(*bucket) for bucket in holding)
    return total


def area(one: int, two: int) -> int:
    return one * two


def uneven(one: int, two: int) -> int:
    return 5 * one + 3 * two * two + one * two


@pytest.mark.parametrize("work", [area, uneven])
@pytest.mark.parametrize("seed", range(8))
def test_of_two_axes_that_grow_together_no_choice_costs_less(seed: int, work: PairWork) -> None:
    rng = random.Random(seed)
    ones, twos = rng.sample(range(1, 30), 4), rng.sample(range(1, 30), 4)
    pairs = [(rng.choice(ones), rng.choice(twos)) for _ in range(rng.randint(1, 25))]
    found = plan_pairs(pairs, work, most=4)
    assert found.step == (1, 1)
    end = (max(one for one, _ in pairs), max(two for _, two in pairs))
    points = sorted(itertools.product({one for one, _ in pairs}, {two for _, two in pairs}))
    for count, plan in enumerate(found.plans, 1):
        assert len(plan.points) == count
        assert plan.points[-1] == end
        assert plan.work == pair_cost(pairs, plan.points, work)  # type: ignore[arg-type]
        chains = [
            (*chain, end)
            for chain in itertools.combinations([point for point in points if point != end], count - 1)
            if all(a[0] <= b[0] and a[1] <= b[1] for a, b in itertools.pairwise(chain))
        ]
        assert plan.work == min(pair_cost(pairs, chain, work) for chain in chains)


def test_a_hundred_thousand_lengths_take_no_time() -> None:
    rng = random.Random(1)
    usual = [min(4096, 1 + int(rng.lognormvariate(5, 0.9))) for _ in range(100_000)]
    different = rng.sample(range(1, 10_000_000), 100_000)
    since = time.process_time()
    plans = plan_lengths(usual, square)
    assert time.process_time() - since < 2
    assert [len(plan.points) for plan in plans] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert all(one.work > two.work for one, two in itertools.pairwise(plans))
    since = time.process_time()
    plan_lengths(different, linear)
    assert time.process_time() - since < 4  # every length another


def test_a_grid_that_is_too_fine_is_made_coarser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_plan, "GRID", 100)
    rng = random.Random(2)
    pairs = [(rng.randint(1, 500), rng.randint(1, 90)) for _ in range(400)]
    found = plan_pairs(pairs, area)
    assert found.step[0] > found.step[1] >= 1
    assert all(size % found.step[0] == 0 and other % found.step[1] == 0 for size, other in found.plans[3].points)
    assert pair_cost(pairs, found.plans[3].points, area) == found.plans[3].work  # type: ignore[arg-type]
