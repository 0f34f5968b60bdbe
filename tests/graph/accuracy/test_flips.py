"""How many choices will flip on other inputs, told from a few."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.graph.accuracy.figures.decisions import FEWEST, expected_share

NUMBERS = np.random.default_rng(5)
CLEAR = 0.2


@pytest.mark.parametrize(("spread", "error"), [(8.0, 0.15), (2.0, 0.15), (8.0, 0.5), (3.0, 0.3)])
def test_few_choices_tell_what_many_would_show(spread: float, error: float) -> None:
    """Of 77 choices the mean estimate is that of two million, and no single one is far off."""
    many = CLEAR + NUMBERS.exponential(spread, 2_000_000)
    errors = NUMBERS.normal(0, error, many.size) * NUMBERS.choice([0.3, 1.0, 1.5], many.size)
    true = float((many + errors < 0).mean())
    found = []
    for _ in range(60):
        places = NUMBERS.integers(0, many.size, 77)
        share = expected_share(many[places], errors[places], CLEAR)
        assert share is not None
        found.append(share)
    assert np.mean(found) == pytest.approx(true, rel=0.5)
    assert min(found) > true / 6
    assert max(found) < true * 6


def test_what_lies_below_the_smallest_margin_is_not_empty() -> None:
    margins, errors = np.linspace(3, 20, 50), np.full(50, 0.3)
    share = expected_share(margins, errors, CLEAR)
    assert share is not None
    assert 1e-4 < share < 1 / 51, "a gap from 0.2 to 3, of which some is within reach of the errors"
    assert expected_share(margins, errors, 2.9) == pytest.approx(0, abs=1e-9), "no choice may be as near as that"


def test_an_error_has_either_sign() -> None:
    margins, errors = np.linspace(CLEAR, 4, 50), np.linspace(0, 1, 50)
    assert expected_share(margins, errors, CLEAR) == expected_share(margins, -errors, CLEAR)


def test_more_error_flips_more_and_none_flips_none() -> None:
    margins = np.linspace(CLEAR, 4, 50)
    shares = [expected_share(margins, np.full(50, size), CLEAR) or 0.0 for size in (0.0, 0.01, 0.1, 1.0)]
    assert shares[0] == 0.0
    assert shares == sorted(shares)
    assert shares[-1] > 0.05


def test_few_errors_among_many_exact_ones_count_as_few() -> None:
    margins = np.linspace(CLEAR, 4, 100)
    all_off = expected_share(margins, np.full(100, 0.5), CLEAR)
    tenth_off = expected_share(margins, np.where(np.arange(100) < 10, 0.5, 0.0), CLEAR)
    assert all_off is not None
    assert tenth_off == pytest.approx(all_off / 10)


def test_equal_margins_are_no_gap() -> None:
    assert expected_share(np.full(20, 1.0), np.full(20, 0.1), CLEAR) is not None


def test_what_is_no_number_flips_and_a_few_choices_tell_nothing() -> None:
    margins = np.linspace(1, 4, 20)
    assert expected_share(margins, np.full(20, np.nan), CLEAR) == 1.0
    assert expected_share(margins[: FEWEST - 1], margins[: FEWEST - 1], CLEAR) is None


def test_of_thousands_quantiles_are_enough() -> None:
    margins, errors = CLEAR + NUMBERS.exponential(3, 50_000), NUMBERS.normal(0, 0.3, 50_000)
    share = expected_share(margins, errors, CLEAR)
    assert share is not None
    assert share == pytest.approx(expected_share(margins[:3000], errors[:3000], CLEAR), rel=0.2)
    assert share == pytest.approx(float((margins + NUMBERS.permutation(errors) < 0).mean()), rel=0.5)
