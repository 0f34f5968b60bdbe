from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeline.graph.accuracy.blame.reasons import Evidence, explain
from pipeline.graph.accuracy.figures.value_errors import ValueSums
from pipeline.graph.quantization.calibration.ranges import MIN_WIDTH, Range
from pipeline.graph.quantization.qdq.qdq_model import Encoding
from pipeline.ladder import EXACT_DB

BYTES = Encoding("uint8", 0.1, 128)
SEEN = Evidence(
    value="v",
    op="Add",
    total_db=15,
    own_db=15,
    weights_db=None,
    has_weights=False,
    inputs_db=60,
    encoding=BYTES,
    observed=Range(-12, 12),
    bulk=Range(-9, 9),
    filler=None,
)
"""Of a value that its encoding alone makes wrong, for no reason but its bits."""


def test_an_encoding_covers_what_its_integers_stand_for() -> None:
    assert BYTES.bits == 8
    assert (BYTES.covers.low, BYTES.covers.high) == pytest.approx((-12.8, 12.7))
    np.testing.assert_allclose(BYTES.rounded(np.array([-99, -0.06, 0.04, 0.06, 99])), [-12.8, -0.1, 0, 0.1, 12.7])
    assert Encoding("int4", 1, 0).covers == Range(-8, 7)
    assert BYTES.facts().to_json() == {"dtype": "uint8", "scale": 0.1, "zero_point": 128, "low": -12.8, "high": 12.7}


@pytest.mark.parametrize(
    ("change", "name", "text"),
    [
        ({}, "encoding", "8 bits over -12.8 to 12.7"),
        ({"observed": Range(-40, 12)}, "saturated", "elements -40 to 12 are cut off to -12.8 to 12.7"),
        (
            {"bulk": Range(-1, 1)},
            "outlier range",
            "-12.8 to 12.7 is 12.8 times as wide as 98% of its elements, -1 to 1",
        ),
        ({"bulk": Range(0, 0)}, "outlier range", "infinitely many times as wide"),
        ({"bulk": Range(-1, 1), "filler": -12.0}, "mask constant", "the constant -12 sets the range: 20 of 256 steps"),
        (
            {"encoding": Encoding("uint8", MIN_WIDTH / 255, 0)},
            "degenerate",
            "calibrated as a constant; here it is -12 to 12",
        ),
        ({"op": "Softmax"}, "8 bit softmax", "probabilities below 0.05 become 0"),
        ({"own_db": 60.0}, "amplified", "inputs of 60.0 dB or more"),
        ({"own_db": 60.0, "inputs_db": 16.0}, "inherited", "the worst of which has 16.0 dB"),
        ({"weights_db": 15.1, "has_weights": True, "own_db": 40.0}, "weight", "alone give 15.1 dB"),
        ({"weights_db": 15.1, "has_weights": True, "own_db": 14.9}, "encoding", "8 bits"),
        ({"total_db": None}, "not a number", "the float value is -12 to 12"),
        ({"total_db": None, "inputs_db": None}, "inherited", "its inputs are no numbers"),
    ],
)
def test_the_reason_fits_what_was_measured(change: dict[str, object], name: str, text: str) -> None:
    reason = explain(replace(SEEN, **change))  # type: ignore[arg-type]

    assert reason.name == name
    assert text in reason.text


def test_16_bits_have_steps_enough_for_outliers() -> None:
    seen = replace(SEEN, encoding=Encoding("uint16", 25.5 / 65535, 32768), bulk=Range(-1, 1))

    assert explain(seen).name == "encoding"


def test_an_input_with_outliers_is_to_blame_for_what_is_made_from_its_other_elements() -> None:
    stretched = replace(SEEN, value="h", bulk=Range(-1, 1))
    fine = replace(SEEN, value="k")

    reason = explain(replace(SEEN, own_db=60.0, inputs=(fine, stretched)))

    assert reason.name == "outlier range"
    assert reason.text.startswith("of its input 'h': -12.8 to 12.7")


def test_the_energy_of_a_filler_does_not_hide_the_error_of_the_rest() -> None:
    scores = np.linspace(-1, 1, 64)
    masked = np.where(np.arange(64) % 2, scores, -1000)
    encoding = Encoding("uint8", 1001 / 255, 255)
    sums = ValueSums(encoding)

    sums.add(masked, encoding.rounded(masked))

    assert sums.clustered
    assert sums.total_db is not None
    assert sums.total_db < 1
    assert sums.total_db == sums.own_db
    assert sums.bulk == Range(scores[1], 1)
    assert sums.observed == Range(-1000, 1)


def test_infinities_count_only_if_they_are_not_the_same() -> None:
    truth = np.array([1.0, -np.inf, np.nan])
    same, other = ValueSums(None), ValueSums(None)
    same.add(truth, truth)
    other.add(truth, np.array([1.0, -100, np.nan]))

    assert same.total_db == EXACT_DB
    assert other.total_db is None
    assert same.observed == Range(1, 1)


def test_memory_does_not_grow_and_samples_add_up() -> None:
    numbers = np.random.default_rng(0).normal(size=(2, 1000))
    apart, together = ValueSums(BYTES), ValueSums(BYTES)
    for half in numbers:
        apart.add(half, half + 0.01, half * 1.5)
    together.add(numbers, numbers + 0.01, numbers * 1.5)

    assert apart.total_db == pytest.approx(together.total_db)
    assert apart.total_db == pytest.approx(40, abs=0.5)
    assert apart.weights_db == pytest.approx(6.02, abs=0.01)
    assert apart.own_db == pytest.approx(together.own_db)
    assert apart.observed == together.observed
