"""A conversation at the terminal: what is read of it, what is shown, and what is said of its speed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.chat.command import Talk, pieces
from pipeline.contracts.language import Lengths
from pipeline.errors import ConfigError
from pipeline.graph.language.speaker import RunnableGraph, Speaker
from pipeline.inputs.samples.chat import Voice
from tests.support.spoken_graphs import KV, LAYERS, SIZE, TOTAL, VOCABULARY, WINDOW, spoken_source, tiny_facts

TOKEN_A = 65


class Echo:
    """A graph that answers with one token; it notes what it was given."""

    def __init__(self, sequence: int, says: int) -> None:
        self.lengths, self.says = Lengths(sequence, TOTAL - sequence), says
        self.read: list[list[int]] = []

    def run(self, feed: Any) -> dict[str, Any]:
        self.read.append(feed["input_ids"][0].tolist())
        count = self.lengths.sequence
        logits = np.zeros((1, count, VOCABULARY), np.float32)
        logits[..., self.says] = 1
        made: dict[str, Any] = {"logits": logits}
        for layer in range(LAYERS):
            made[f"past_key_{layer}_out"] = np.zeros((KV, 1, SIZE, count), np.float32)
            made[f"past_value_{layer}_out"] = np.zeros((KV, 1, count, SIZE), np.float32)
        return made


@pytest.fixture
def voice(tmp_path: Path) -> Voice:
    return Voice(spoken_source(tmp_path))


def speaker(says: int = TOKEN_A) -> tuple[Speaker, Echo, Echo]:
    decode, prefill = Echo(1, says), Echo(WINDOW, says)
    first, second = (RunnableGraph(each.lengths, each.run) for each in (decode, prefill))
    return Speaker(tiny_facts(), first, second), decode, prefill


def test_an_answer_has_as_many_tokens_as_are_asked_for_and_says_how_fast_they_came(voice: Voice) -> None:
    talk = Talk(voice, speaker()[0], "a script", 3)

    assert "".join(talk.answer("a")) == "AAA"
    assert talk.said.startswith("18 tokens read in ")
    assert "s, 3 answered, " in talk.said
    assert talk.said.endswith("tokens a second, on a script")


def test_an_answer_ends_with_the_token_that_ends_answers(voice: Voice) -> None:
    talk = Talk(voice, speaker(says=265)[0], "a script", 3)

    assert "".join(talk.answer("a")) == ""
    assert "0 answered, on a script" in talk.said


def test_a_conversation_that_grows_beyond_the_context_begins_anew(voice: Voice) -> None:
    made, _, prefill = speaker()
    talk = Talk(voice, made, "a script", 100)

    first = "".join(talk.answer("a"))
    assert "the context is full" in talk.said
    prefill.read.clear()
    second = "".join(talk.answer("a"))

    assert first == second
    assert sum(map(len, prefill.read)) >= 18  # all of the question is read again


def test_a_question_longer_than_the_context_is_refused(voice: Voice) -> None:
    talk = Talk(voice, speaker()[0], "a script", 3)

    with pytest.raises(ConfigError, match="the question has"):
        [*talk.answer("a" * 40)]
    assert "".join(talk.answer("a")) == "AAA"  # the next one is


def test_bytes_of_one_character_wait_for_each_other(voice: Voice) -> None:
    tokens = voice.tokenizer.encode("aé", add_special_tokens=False).ids

    assert [*pieces(voice, tokens)] == ["a", "é"]


def test_what_would_steer_the_terminal_is_shown(voice: Voice) -> None:
    tokens = voice.tokenizer.encode("\x1b[2J", add_special_tokens=False).ids

    assert "".join(pieces(voice, tokens)) == "\\x1b[2J"


def test_reading_goes_on_one_by_one_where_prefill_would_forget() -> None:
    made, decode, prefill = speaker()
    made.read([*range(1, 27)])
    prefill.read.clear()

    made.read([27, 28])

    assert prefill.read == []
    assert decode.read == [[27], [28]]
    assert made.room == TOTAL - 28
