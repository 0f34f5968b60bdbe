"""Which tokens of which conversation the emulator reads and decodes, and how many."""

from __future__ import annotations

import pytest

from pipeline.contracts.language import Lengths
from pipeline.inputs.samples.emulated_tokens import decoded_count, to_decode, to_prefill
from pipeline.inputs.samples.spoken import SpokenText

TWIN, PREFILL = Lengths(1, 63), Lengths(16, 48)


def text(length: int, answer: int | None) -> SpokenText:
    return SpokenText(list(range(length)), answer)


@pytest.mark.parametrize("answer", [16, 49, 64])
def test_prefill_reads_the_window_before_an_answer_and_is_judged_by_its_first_token(answer: int) -> None:
    assert to_prefill([text(200, answer)], PREFILL) == (list(range(answer + 1)), answer - 16)


def test_prefill_takes_the_first_conversation_whose_question_the_cache_holds() -> None:
    assert to_prefill([text(200, 65), text(90, 15), text(80, 40), text(70, 50)], PREFILL) == (list(range(41)), 24)


@pytest.mark.parametrize("answer", [None, 15, 65])
def test_without_such_a_window_prefill_reads_the_first(answer: int | None) -> None:
    assert to_prefill([text(200, answer)], PREFILL) == (list(range(64)), 0)


def test_decode_begins_where_an_answer_does() -> None:
    assert to_decode([text(200, 49)], TWIN, 8) == (list(range(200)), 49, 8)


def test_the_first_conversation_is_taken_whose_answer_has_the_most_room() -> None:
    late, early, earlier = text(200, 62), text(100, 50), text(90, 20)

    assert to_decode([late, early, earlier], TWIN, 8)[:2] == (early.tokens, 50)
    assert to_decode([late, text(52, 50), text(58, 54)], TWIN, 8) == (list(range(58)), 54, 4)


@pytest.mark.parametrize("answer", [None, 62, 300])
def test_without_an_answer_in_reach_the_beginning_is_decoded(answer: int | None) -> None:
    assert to_decode([text(400, answer)], TWIN, 8) == (list(range(64)), 16, 8)


def test_one_token_is_decoded_if_one_is_asked_for() -> None:
    assert to_decode([text(200, 63)], TWIN, 1)[1:] == (63, 1)


@pytest.mark.parametrize(("step_s", "count"), [(0.0, 8), (0.8, 8), (6.0, 5), (29.0, 3), (100.0, 3)])
def test_the_budget_says_how_many(step_s: float, count: int) -> None:
    assert decoded_count(step_s, 30) == count
