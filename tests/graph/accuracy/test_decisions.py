"""What an application reads off an output, and how much of it is alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.config.thresholds import Thresholds
from pipeline.contracts.measures import Agreement, Figures, Subject
from pipeline.graph.accuracy.figures.decisions import choice_axis, expected_share
from pipeline.graph.accuracy.figures.measuring import measure
from pipeline.graph.accuracy.figures.output_structure import Makeup
from pipeline.graph.accuracy.figures.subjects import choose
from pipeline.graph.accuracy.verdict import TOTAL, shortfalls

NUMBERS = np.random.default_rng(3)
LIKELIEST = Subject("y", bounded=True, reads="likeliest", axis=2, tie=0.05)
LEVEL = Subject("y", bounded=True, reads="level")


def softmax(scores: NDArray[Any]) -> NDArray[Any]:
    odds = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(odds / odds.sum(-1, keepdims=True))


def lines(count: int = 8, steps: int = 40) -> list[dict[str, Any]]:
    """Probabilities of a recognizer: a letter at every fourth step, blanks between, each of them clear."""
    scores = NUMBERS.normal(size=(count, 1, steps, 30))
    scores[..., 0] += 12
    for step in range(0, steps, 4):
        scores[..., step, 1 + step // 4 % 29] += 24
    return [{"y": softmax(each)} for each in scores]


def figures(subject: Subject, truth: list[Any], tested: list[Any]) -> Figures:
    return measure({"y": subject}, [f"s{number}" for number in range(len(truth))], truth, tested)["y"]


def alike(subject: Subject, truth: list[Any], tested: list[Any]) -> Agreement:
    found = figures(subject, truth, tested).agreement
    assert found is not None
    return replace(found, flips=None)


def kinds(found: Figures, subject: Subject, limits: Thresholds | None = None) -> list[str]:
    return [missed.kind for missed in shortfalls(TOTAL, {"y": found}, {"y": subject}, limits or Thresholds())]


def test_letters_that_flip_are_a_miss_that_decibels_hide() -> None:
    truth = lines()
    tested = [{"y": sample["y"].copy()} for sample in truth]
    tested[2]["y"][0, 12, [4, 9]] = tested[2]["y"][0, 12, [9, 4]]
    found = figures(LIKELIEST, truth, tested)
    assert alike(LIKELIEST, truth, tested) == Agreement(1 - 1 / 80, 80, 1 - 1 / 10, "s2"), "blanks don't count"
    assert found.sqnr_db is not None
    assert found.sqnr_db > 20, "no gate in dB sees it"
    assert kinds(found, LIKELIEST) == ["choices"]
    assert not kinds(found, LIKELIEST, Thresholds(choices=0.98))


def test_a_letter_that_becomes_a_blank_counts_as_one_that_came_from_a_blank() -> None:
    truth = lines(1)
    tested = [{"y": truth[0]["y"].copy()}]
    for step, letter in ((4, 2), (5, 2)):
        tested[0]["y"][0, step, [0, letter]] = tested[0]["y"][0, step, [letter, 0]]
    assert alike(LIKELIEST, truth, tested) == Agreement(round(1 - 2 / 11, 5), 11, round(1 - 2 / 11, 5), "s0")


def test_a_tie_may_be_decided_either_way() -> None:
    truth = [{"y": np.array([[[0.5, 0.46, 0.04], [0.9, 0.05, 0.05]]])}]
    tested = [{"y": np.array([[[0.46, 0.5, 0.04], [0.9, 0.05, 0.05]]])}]
    assert alike(LIKELIEST, truth, tested) == Agreement(1.0, 1, 1.0, "s0"), "the one that is clear"


def test_what_is_no_number_chooses_nothing() -> None:
    truth = lines(1)
    tested = [{"y": truth[0]["y"].copy()}]
    tested[0]["y"][0, :20] = np.nan
    assert alike(LIKELIEST, truth, tested) == Agreement(0.2, 25, 0.2, "s0"), "5 of 10 letters, and 15 blanks"


@pytest.mark.parametrize("by", ["choice", "values"])
def test_scores_that_are_masked_choose_among_the_others(by: Any) -> None:
    scores = NUMBERS.normal(size=(20, 6))
    scores[:, 0] += 20
    scores[::2, 3:] = -np.inf
    subject = Subject("y", by=by, reads="largest", axis=1, tie=0.1)
    truth = [{"y": scores}]
    assert alike(subject, truth, truth).share == 1
    assert figures(subject, truth, truth).agreement.flips == 0  # type: ignore[union-attr]
    lost = scores.copy()
    lost[0, 1], lost[1, 1], lost[2, 3] = -np.inf, np.nan, np.nan
    assert alike(subject, truth, [{"y": lost}]).share == 17 / 20
    if by == "choice":
        assert figures(subject, truth, truth).sqnr_db == 100
        assert figures(subject, truth, [{"y": lost}]).sqnr_db != 100


def test_figures_in_db_need_not_be_read() -> None:
    truth = lines(2)
    tested = [{"y": each["y"] * 0.99} for each in truth]
    found = measure({"y": LIKELIEST}, ["a", "b"], truth, tested, read=False)["y"]
    assert found == replace(measure({"y": LIKELIEST}, ["a", "b"], truth, tested)["y"], agreement=None)


def test_levels_are_compared_as_intersection_over_union() -> None:
    one, other = np.zeros((1, 1, 40, 40)), np.zeros((1, 1, 40, 40))
    one[..., 10:30, 10:30], other[..., 10:30, 11:31] = 1, 1
    both = alike(LEVEL, [{"y": one}], [{"y": other}])
    assert both.share == pytest.approx(19 / 21, abs=1e-5)
    assert both.of == 20 * 21
    rare = np.full((1, 1), 3e-4)
    assert figures(LEVEL, [{"y": rare}], [{"y": rare * 2}]).agreement is None, "neither says yes to any level"
    assert alike(LEVEL, [{"y": np.array([0.9])}], [{"y": np.array([0.72])}]).share == 0.8
    assert alike(LEVEL, [{"y": np.array([0.9])}], [{"y": np.array([np.nan])}]).share == 0


def test_the_worst_map_counts_and_an_empty_one_does_not() -> None:
    truth, empty = [np.ones((1, 10)), np.ones((1, 10)), np.full((1, 10), 0.08)], np.full((1, 10), 0.12)
    tested = [truth[0], np.full((1, 10), 0.7), empty]
    found = alike(LEVEL, [{"y": each} for each in truth], [{"y": each} for each in tested])
    assert found.worst_sample == "s1"
    assert found.worst == pytest.approx(0.7)


def test_an_overlap_is_a_gate_for_all_maps_and_for_the_worst() -> None:
    def judged(share: float, worst: float) -> list[str]:
        figure = Figures(25.0, 25.0, 20.0, "s", 1.0, 0.4, agreement=Agreement(share, 100, worst, "s"))
        return kinds(figure, LEVEL)

    assert judged(0.95, 0.8) == []
    assert judged(0.88, 0.8) == ["overlap"]
    assert judged(0.95, 0.7) == ["overlap"]


def test_what_other_inputs_will_lead_to_is_an_aim_and_no_gate() -> None:
    for subject in (LIKELIEST, LEVEL, Subject("y", by="choice", axis=1, tie=0.1)):
        found = Figures(50.0, 50.0, 50.0, "s", 1.0, 0.4, agreement=Agreement(1.0, 77, 1.0, "s", flips=0.004))
        assert kinds(found, subject) == []
        assert kinds(found, subject, Thresholds(flips=0.001)) == ["flips"]
        assert kinds(found, subject, Thresholds(flips=0.005)) == []


def test_letters_near_a_tie_and_errors_like_it_are_told_before_one_flips() -> None:
    """All of 96 letters alike, the nearest with an error that does it no harm, but would with the sign turned."""
    scores = NUMBERS.normal(size=(12, 8, 30))
    scores[..., 1] = scores.max(-1) + NUMBERS.exponential(4, (12, 8))
    scores[0, 0, 1] = np.sort(scores[0, 0])[-2] + 0.25
    truth = [{"y": each} for each in scores]
    subject = Subject("y", reads="largest", axis=1, tie=0.2)
    for error, most, least in ((0.001, 1e-6, 0.0), (0.15, 0.05, 0.002)):
        tested = []
        for each in scores:
            noise = error * NUMBERS.normal(size=each.shape)
            noise[:, 1] = np.abs(noise[:, 1]) + error  # never against the letter
            tested.append({"y": each + noise})
        found = figures(subject, truth, tested).agreement
        assert found is not None
        assert found.share == 1.0
        assert found.flips is not None
        assert least <= found.flips <= most


def test_probabilities_flip_by_their_odds() -> None:
    """Near 1 a probability hardly moves, whatever its score does: an error of the score is that of the odds."""
    scores = NUMBERS.normal(size=(400, 2)) * 2
    noisy = scores + 0.5 * NUMBERS.normal(size=scores.shape)
    by_odds = figures(
        Subject("y", bounded=True, reads="likeliest", axis=1, tie=0.05),
        *([{"y": softmax(each)}] for each in (scores, noisy)),
    ).agreement
    by_scores = figures(Subject("y", reads="largest", axis=1, tie=0.1), [{"y": scores}], [{"y": noisy}]).agreement
    yes = figures(LEVEL, *([{"y": softmax(each)[:, 1]}] for each in (scores, noisy))).agreement
    assert by_odds is not None
    assert by_scores is not None
    assert yes is not None
    assert by_odds.flips == pytest.approx(by_scores.flips, rel=0.1)
    assert yes.flips == pytest.approx(by_scores.flips, rel=0.1), "a level is a choice between yes and no"


def test_probabilities_that_are_as_good_as_1_tell_nothing_of_errors() -> None:
    """An error of the score shows in the odds of those alone whose runner-up is not rounded away."""
    near = np.linspace(0.3, 3, 20)
    sure = np.full(400, 20.0)
    scores = np.stack([np.concatenate([near, sure]), np.zeros(420)], -1)
    noisy = scores + np.stack([np.where(np.arange(420) % 2, 0.6, -0.25), np.zeros(420)], -1)
    subject = Subject("y", bounded=True, reads="likeliest", axis=1, tie=0.05)
    found = figures(subject, [{"y": softmax(scores)}], [{"y": softmax(noisy)}]).agreement
    assert found is not None
    assert found.share == 1
    margins = np.concatenate([near, np.full(400, 10 * np.log(2))])
    errors = np.where(np.arange(20) % 2, 0.6, -0.25)
    assert found.flips == pytest.approx(expected_share(margins, errors, 2 * np.arctanh(0.05)), rel=0.02)


@pytest.mark.parametrize("reads", ["likeliest", "level"])
def test_probabilities_that_are_rounded_flip_nothing_that_is_clear(reads: Any) -> None:
    """Rounding to 8 bits doubles the odds of what is rare, and moves no probability by more than 0.002."""
    chosen = np.concatenate([np.linspace(0.55, 0.75, 40), 1 - np.geomspace(0.004, 0.1, 200)])
    truth = np.stack([chosen, 1 - chosen], -1)
    tested = np.round(truth * 255) / 255
    subject = LIKELIEST if reads == "likeliest" else LEVEL
    arrays = [[{"y": each if reads == "likeliest" else each[:, 0]}] for each in (truth, tested)]
    found = figures(replace(subject, axis=1 if reads == "likeliest" else None), *arrays).agreement
    assert found is not None
    assert found.flips is not None
    assert found.flips < 1e-6


def test_who_accepts_an_error_in_numbers_is_asked_for_no_choices() -> None:
    small = Figures(18.0, 18.0, 12.0, "s", 1.0, 0.01, agreement=Agreement(0.5, 4, 0.5, "s"))
    assert kinds(small, LIKELIEST) == [], "an error of 0.01 flips no clear choice"


def test_scores_that_are_no_probabilities_make_a_default_climb_and_fail_no_build() -> None:
    scores = Subject("y", reads="largest", axis=1, tie=0.1)
    found = Figures(40.0, 40.0, 40.0, "s", 1.0, 1.0, agreement=Agreement(0.9, 20, 0.5, "s"))
    assert kinds(found, scores) == []
    assert kinds(found, scores, Thresholds(scores=True)) == ["choices"]


def test_the_axis_of_probabilities_is_told_from_their_sum() -> None:
    truth = [sample["y"] for sample in lines(2)]
    assert choice_axis(truth) == 2
    assert choice_axis([np.swapaxes(each, 1, 2) for each in truth]) == 1
    assert choice_axis([each.astype(np.float16) for each in truth]) == 2
    assert choice_axis([each * 0.9 for each in truth]) is None
    assert choice_axis([np.ones((1, 1))]) is None, "one entry is no choice"
    assert choice_axis([np.array([[2.0, -1.0]])]) is None
    assert choice_axis([np.zeros((1, 0))]) is None


def test_what_an_output_is_made_of_says_how_it_is_read() -> None:
    def reads(array: NDArray[Any], **about: Any) -> tuple[str | None, int | None]:
        found = choose([{"y": array}], {"y": Makeup(**about)}, {}, "x")["y"]
        return found.reads, found.axis

    assert reads(np.array([[0.2, 0.1]]), bounded=True) == ("level", None)
    assert reads(np.array([[0.9, 0.1]]), bounded=True, shares=True) == ("likeliest", 1)
    assert reads(np.array([[0.9, 0.1]])) == ("likeliest", 1), "a Softmax that is written out"
    assert reads(NUMBERS.normal(size=(1, 5, 7)), classes=7) == ("largest", 2)
    assert reads(NUMBERS.normal(size=(7, 7)), classes=7) == (None, None), "which axis is not known"
    assert reads(NUMBERS.normal(size=(1, 5, 7))) == (None, None)
