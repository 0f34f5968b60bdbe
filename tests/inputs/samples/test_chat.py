"""Conversations as tokens, through a language model's own template."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from pipeline.contracts.samples import Reading
from pipeline.contracts.values import TensorSpec
from pipeline.graph.language.names import ANSWER, TEMPLATE, TOKENIZER, TOKENS
from pipeline.inputs.samples.chat import read
from pipeline.inputs.samples.conform import Interface
from pipeline.inputs.samples.request import ReadRequest
from tests.support.spoken_graphs import tiny_facts

WORDS = ["<bos>", "a", "b", "c"]


QUESTION = {"role": "user", "content": "b c b c b c b c"}
ANSWER_TO_IT = {"role": "assistant", "content": "c b b"}
MARKED = (
    "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} a {% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant' }}{% endif %}"
)


def arrays_of(
    folder: Path,
    template: str,
    bos: int | None,
    chat: Sequence[Mapping[str, str]] = (QUESTION,),
    past: int = 511,
    named: Mapping[str, str] | None = None,
) -> dict[str, list[int]]:
    """What the reader makes of one conversation, in a context of `past` tokens and one more."""
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="a"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(folder / TOKENIZER))
    (folder / TEMPLATE).write_text(template, "utf-8")
    chats = folder / "chats.jsonl"
    chats.write_text(json.dumps([*chat]) + "\n", "utf-8")
    interface = Interface((TensorSpec("past", "float32", (1, 64)),), {"bucket": {"past": past}}, {})
    language = dataclasses.replace(tiny_facts(), bos=bos, named=named)
    request = ReadRequest(
        Reading("chat"),
        {"model": interface},
        {"model": folder / "model.onnx"},
        folder,
        chats,
        None,
        {"model": language},
    )
    (call,) = read(request)
    return {name: [int(number) for number in array] for name, array in call.arrays.items()}


@pytest.mark.parametrize("template", ["{{ messages[0]['content'] }}", "{{ bos_token }} {{ messages[0]['content'] }}"])
def test_a_text_begins_with_the_token_that_the_model_begins_with(template: str, tmp_path: Path) -> None:
    assert arrays_of(tmp_path, template, 0)[TOKENS][:3] == [0, 2, 3]  # once, whether the template writes it or not


def test_a_model_without_one_begins_with_the_text(tmp_path: Path) -> None:
    assert arrays_of(tmp_path, "{{ messages[0]['content'] }}", None)[TOKENS][:2] == [2, 3]


def test_a_template_calls_tokens_by_the_names_that_the_source_gives_them(tmp_path: Path) -> None:
    named = {"bos_token": "c", "eos_token": "b"}

    found = arrays_of(tmp_path, "{{ bos_token }} {{ messages[0]['content'] }} {{ eos_token }}", None, named=named)

    assert (found[TOKENS][0], found[TOKENS][-1]) == (3, 2)


@pytest.mark.parametrize("bos", [None, 0])
def test_a_sample_says_where_its_first_answer_begins(bos: int | None, tmp_path: Path) -> None:
    found = arrays_of(tmp_path, MARKED, bos, (QUESTION, ANSWER_TO_IT, QUESTION, ANSWER_TO_IT))

    (begin,) = found[ANSWER]
    assert begin == (bos is not None) + 1 + 8 + 1 + 1  # who asks, the question, its end, and who is to answer
    assert found[TOKENS][begin : begin + 3] == [3, 2, 2]


@pytest.mark.parametrize(
    ("template", "chat", "past"),
    [
        pytest.param(MARKED, (QUESTION,), 511, id="there is none"),
        pytest.param(MARKED, (QUESTION, ANSWER_TO_IT), 9, id="it is cut off"),
        pytest.param(
            MARKED.replace("'assistant'", "'b c'"), (QUESTION, ANSWER_TO_IT), 511, id="it is asked for otherwise"
        ),
        pytest.param(
            "{% if messages|length < 2 %}{{ raise_exception('no') }}{% endif %}" + MARKED,
            (QUESTION, ANSWER_TO_IT),
            511,
            id="the template refuses a question alone",
        ),
    ],
)
def test_a_sample_without_an_answer_that_is_known_says_nothing(
    template: str, chat: Sequence[Mapping[str, str]], past: int, tmp_path: Path
) -> None:
    assert {*arrays_of(tmp_path, template, None, chat, past)} == {TOKENS}
