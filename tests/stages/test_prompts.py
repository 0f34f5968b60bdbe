"""Which prompt engines are asked: the one of several whose answer is furthest from a tie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipeline.contracts.language import Lengths
from pipeline.graph.language.speaker import RunnableGraph, Speaker
from pipeline.stages.converse import clearest, prompts_of
from tests.support.spoken_graphs import KV, LAYERS, SIZE, TOTAL, VOCABULARY, WINDOW, tiny_facts


def graph(sequence: int) -> RunnableGraph:
    """Answers 7 after whatever token, which is as far ahead of 8 as the token that it was given says, in hundredths.

    After 9 it answers a token that ends answers.
    """

    def run(feed: Any) -> dict[str, Any]:
        given = feed["input_ids"][0]
        logits = np.zeros((1, sequence, VOCABULARY), np.float32)
        logits[0, :, 8], logits[0, :, 7] = 1, 1 + given / 100
        logits[0, given == 9, 263] = 5
        made: dict[str, Any] = {"logits": logits}
        for layer in range(LAYERS):
            made[f"past_key_{layer}_out"] = np.zeros((KV, 1, SIZE, sequence), np.float32)
            made[f"past_value_{layer}_out"] = np.zeros((KV, 1, sequence, SIZE), np.float32)
        return made

    return RunnableGraph(Lengths(sequence, TOTAL - sequence), run)


@pytest.fixture
def speaker() -> Speaker:
    return Speaker(tiny_facts(), graph(1), graph(WINDOW))


def test_a_speaker_says_how_far_the_likeliest_token_is_ahead(speaker: Speaker) -> None:
    assert speaker.lead == float("inf")
    speaker.read([1, 4])
    assert speaker.lead == pytest.approx(0.04)


def test_the_surest_answer_is_asked_for(speaker: Speaker) -> None:
    # Later tokens of each answer follow 7, so that 0.07 is the most that counts.
    assert clearest(speaker, [[1, 2], [1, 6], [1, 3]]) == ([1, 6], (7, 7, 7))
    assert clearest(speaker, [[1, 20], [1, 30]]) == ([1, 20], (7, 7, 7))


def test_prompts_are_read_before_any_is_answered(speaker: Speaker) -> None:
    order = []

    def noted(made: RunnableGraph) -> RunnableGraph:
        def run(feed: Any) -> Any:
            order.append(made.lengths.sequence)
            return made.run(feed)

        return RunnableGraph(made.lengths, run)

    watched = Speaker(tiny_facts(), noted(graph(1)), noted(graph(WINDOW)))
    prompts = [[1, 2], [1, 6], [1, 3]]

    assert clearest(watched, prompts) == clearest(speaker, prompts)
    assert order == sorted(order, reverse=True)  # prefill's session is opened once, then decode's
    assert {*order} == {1, WINDOW}


def test_an_answer_that_ends_at_once_is_asked_for_last(speaker: Speaker) -> None:
    assert clearest(speaker, [[1, 9], [1, 2]])[0] == [1, 2]
    assert clearest(speaker, [[1, 9]]) == ([1, 9], ())


def test_prompts_begin_at_different_places_as_texts_may_begin_alike() -> None:
    assert prompts_of([[1, 2, 3, 4, 5], [1, 2, 8, 9]], 2) == [(1, 2), (3, 4), (8, 9)]
    assert prompts_of([[1, 2], [1, 2, 3]], 4) == [[1, 2, 3]]
    assert len(prompts_of([[*range(400)]], 4)) == 8
