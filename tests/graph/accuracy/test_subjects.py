"""What is judged by itself, and the figures of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from pipeline.contracts.measures import Declared, Figures, Subject
from pipeline.errors import ConfigError
from pipeline.graph.accuracy.figures.measuring import measure, spans_of
from pipeline.graph.accuracy.figures.output_structure import Makeup, Part
from pipeline.graph.accuracy.figures.subjects import choose, part_of
from pipeline.ladder import EXACT_DB
from tests.support.figures import db

NUMBERS = np.random.default_rng(0)
HEAD = Makeup(axis=1, parts=(Part(0, 4, False), Part(4, 7, True)))
SCORES = Subject("y", ":, 4:", bounded=True, reads="level")
WHERE = "net.yaml:9:3: verification.outputs"


def head(samples: int = 3, places: int = 50) -> list[dict[str, Any]]:
    """Boxes in pixels beside three scores that are small nearly everywhere, as a detector gives them."""
    boxes = NUMBERS.uniform(20, 320, (samples, 1, 4, places))
    scores = NUMBERS.uniform(0, 0.01, (samples, 1, 3, places)) + (NUMBERS.random((samples, 1, 3, places)) > 0.97) * 0.9
    return [{"y": np.concatenate(pair, 1).astype(np.float32)} for pair in zip(boxes, scores, strict=True)]


def chosen(
    truth: list[dict[str, Any]], makeup: Mapping[str, Makeup] | None = None, **declared: Declared
) -> dict[str, Subject]:
    return choose(truth, makeup or {}, declared, WHERE)


def figures(subjects: Mapping[str, Subject], truth: list[Any], tested: list[Any]) -> dict[str, Figures]:
    return measure(subjects, [f"s{number}" for number in range(len(truth))], truth, tested)


def test_channels_of_other_units_are_judged_apart() -> None:
    truth = head()
    subjects = chosen(truth, {"y": HEAD})
    assert subjects == {"y[:, :4]": Subject("y", ":, :4"), "y[:, 4:]": SCORES}
    tested = [{"y": sample["y"] + np.float32(0.3)} for sample in truth]
    whole = figures({"y": Subject("y")}, truth, tested)["y"]
    apart = figures(subjects, truth, tested)
    assert db(whole) > 50 > 20 > db(apart["y[:, 4:]"]), "one figure hides that the scores are noise"


def test_parts_of_one_magnitude_are_judged_together() -> None:
    truth = head()
    plain = Makeup(axis=1, parts=(Part(0, 4, False), Part(4, 7, False)))
    alike = [{"y": NUMBERS.normal(size=(1, 7, 9)) * np.array([50] * 4 + [1] * 3).reshape(1, 7, 1)}]
    assert chosen(alike, {"y": plain}) == {"y": Subject("y")}
    assert len(chosen([{"y": sample["y"] ** 3} for sample in alike], {"y": plain})) == 2
    silent = [{"y": sample["y"] * np.array([1] * 4 + [0] * 3).reshape(1, 7, 1)} for sample in truth]
    assert chosen(silent, {"y": plain}) == {"y": Subject("y")}, "a dead branch is no unit"
    three = Makeup(axis=1, parts=(Part(0, 2, False), Part(2, 4, False), Part(4, 7, True)))
    assert list(chosen(truth, {"y": three})) == ["y[:, :4]", "y[:, 4:]"]


def test_a_quiet_channel_is_no_unit() -> None:
    quiet = [{"y": sample["y"][:, :4] * np.array([1, 1e-3, 1, 1]).reshape(1, 4, 1)} for sample in head()]
    assert chosen(quiet) == {"y": Subject("y")}


def test_shares_of_a_whole_are_bounded_where_one_is_clear() -> None:
    clear, small = np.array([[0.9, 0.1]]), np.full((1, 1000), 1e-3)
    assert chosen([{"y": clear}], {"y": Makeup(bounded=True, shares=True)})["y"].bounded
    assert not chosen([{"y": small}], {"y": Makeup(bounded=True, shares=True)})["y"].bounded
    assert chosen([{"y": small}], {"y": Makeup(bounded=True)})["y"].bounded


def test_a_config_names_slices_and_the_rest_is_judged_too() -> None:
    truth = [sample | {"n": np.arange(3)} for sample in head()]
    subjects = chosen(truth, boxes=Declared("y", ":, :4"), one=Declared("y", ":, 4"))
    assert list(subjects) == ["boxes", "one", "y (rest)", "n"]
    assert part_of(subjects["y (rest)"], truth[0]).size == 2 * 50
    assert subjects["n"].by == "equality"
    covered = chosen(truth, boxes=Declared("y", ":, :4"), scores=Declared("y", ":, 4:"), n=Declared())
    assert list(covered) == ["boxes", "scores", "n"]
    alone = chosen([{"y": truth[0]["y"]}], boxes=Declared(slice=":, :4"))
    assert alone["boxes"].output == "y", "of one output alone, any label will do"


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (Declared("z"), r"(?s)there is no output 'z'.*outputs.scores.*outputs are 'y', 'n'"),
        (Declared(slice=":, :4"), "there is no output 'scores'"),
        (Declared("y", ":, 9"), r"(?s)takes nothing of dim 1.*outputs.scores.slice"),
        (Declared("y", ":, 0", choice=2), "has no axis 2"),
    ],
)
def test_a_config_that_does_not_fit_the_outputs(declared: Declared, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        chosen([sample | {"n": np.arange(3)} for sample in head()], scores=declared)


def test_a_choice_counts_where_the_original_is_clear() -> None:
    truth = [{"y": np.array([[3.0, 1.0], [1.0, 1.05], [0.0, 2.0]])}]
    subjects = chosen(truth, y=Declared(choice=-1))
    assert subjects["y"].by == "choice"
    near = figures(subjects, truth, [{"y": np.array([[3.0, 1.0], [1.05, 1.0], [0.0, 2.0]])}])["y"]
    assert (near.sqnr_db, near.max_abs_error) == (EXACT_DB, 0.05), "the second is a tie"
    wrong = figures(subjects, truth, [{"y": np.array([[0.0, 1.0], [1.0, 1.0], [0.0, 2.0]])}])["y"]
    assert db(wrong) == pytest.approx(10 * np.log10(3), abs=0.01)
    broken = figures(subjects, truth, [{"y": np.array([[np.nan, 1.0], [1.0, 1.05], [0.0, 2.0]])}])["y"]
    assert broken.sqnr_db == wrong.sqnr_db, "nothing can be chosen among what is no number"
    assert broken.outlier is not None
    strict = chosen(truth, y=Declared(choice=-1, tie=0.0))
    assert db(figures(strict, truth, [{"y": np.array([[3.0, 1.0], [1.05, 1.0], [0.0, 2.0]])}])["y"]) < 5


def test_an_argmax_may_choose_either_of_a_tie() -> None:
    subject = Subject("y", by="equality", chosen_from="logits", axis=-1, tie=0.1)
    logits = [{"logits": np.array([[3.0, 1.0], [1.0, 1.05]])}]
    truth, tested = [{"y": np.array([0, 1])}], [{"y": np.array([0, 0])}]
    found = measure({"y": subject}, ["a"], truth, tested, chosen_from=logits)["y"]
    assert found.sqnr_db == EXACT_DB
    clear = [{"logits": logits[0]["logits"] * 10}]
    assert db(measure({"y": subject}, ["a"], truth, tested, chosen_from=clear)["y"]) == pytest.approx(3.01)


def test_a_value_far_outside_of_the_originals_range_is_named() -> None:
    truth = [{"p": np.array([value], np.float32)} for value in (0.01, 0.5, 0.98)]
    tested = [{"p": np.array([value], np.float32)} for value in (0.01, -98304, 0.98)]
    found = figures({"p": Subject("p", bounded=True)}, truth, tested)["p"].outlier
    assert found is not None
    assert (found.sample, found.value, found.low, found.high, found.times) == ("s1", -98300.0, 0.0, 1.0, 98300.0)


def test_the_range_is_that_of_all_samples_not_of_those_that_were_run() -> None:
    truth = [{"y": np.array([value])} for value in (-1.0, 5.0)]
    subjects = {"y": Subject("y")}
    spans = spans_of(subjects, truth)
    assert spans == {"y": (-1.0, 5.0)}
    one, other = [{"y": np.array([0.0])}], [{"y": np.array([4.0])}]
    alone = measure(subjects, ["a"], one, other)["y"].outlier
    known = measure(subjects, ["a"], one, other, spans=spans)["y"].outlier
    assert alone is not None
    assert alone.times is None, "a range without width"
    assert known is None


def test_silence_is_held_against_the_mean_signal() -> None:
    truth = [{"y": np.array([10.0])}, {"y": np.array([0.001])}]
    tested = [{"y": np.array([10.1])}, {"y": np.array([0.101])}]
    found = figures({"y": Subject("y")}, truth, tested)["y"]
    assert found.worst_db is not None
    assert found.worst_db > 35, "an error as large as that of the other sample, not one of -40 dB"


def test_integers_that_are_numbers_are_judged_by_their_values() -> None:
    rng = np.random.default_rng(0)
    truth = [{"y": rng.integers(100, 156, (8, 8)).astype(np.uint8)} for _ in range(4)]
    tested = [{"y": sample["y"] + np.uint8(1)} for sample in truth]
    subjects = chosen(truth, {"y": Makeup(zero=128.0)})
    assert subjects == {"y": Subject("y", zero=128.0)}
    found = figures(subjects, truth, tested)["y"]
    signal = np.mean([(sample["y"].astype(float) - 128) ** 2 for sample in truth])
    assert db(found) == pytest.approx(10 * np.log10(signal), abs=0.01), "against 128, which stands for 0"
    assert found.max_abs_error == 1
    assert db(figures(chosen(truth), truth, tested)["y"]) == 0, "labels: none is equal"
    declared = chosen(truth, {"y": Makeup(zero=0.0)}, y=Declared("y", ":, :4"))
    assert declared["y"] == Subject("y", ":, :4", zero=0.0)
    assert chosen(truth, y=Declared("y", ":, :4"))["y"].by == "equality"
