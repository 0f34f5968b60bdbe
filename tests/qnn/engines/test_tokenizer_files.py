"""Padding is a token that no prompt holds; the tokenizer of onnxruntime-genai knows the template."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from pipeline.qnn.engines.tokenizer_files import Vocabulary, read_vocabulary, spare_token, tokenizer_config
from tests.support.spoken_graphs import VOCABULARY, spoken_source, tiny_facts

SPECIALS = {0: "<|endoftext|>", 1: "<|im_start|>", 2: "<|im_end|>", 3: "<spare>"}
SAID = "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n"


def facts_with(pad: int | None, stops: tuple[int, ...], bos: int | None = None):  # type: ignore[no-untyped-def]
    return dataclasses.replace(tiny_facts(), pad=pad, stops=stops, bos=bos)


def test_the_models_own_padding_is_kept_where_no_prompt_holds_it() -> None:
    assert spare_token(Vocabulary(9, SPECIALS), SAID, facts_with(0, (2,))) == 0


def test_padding_that_the_template_writes_gives_way() -> None:
    # SmolLM2's padding is <|im_end|>, which ends every message: genai would take the rest of a prompt for padding.
    assert spare_token(Vocabulary(9, SPECIALS), SAID, facts_with(2, (0, 2))) == 3


def test_a_token_that_ends_answers_is_the_last_resort() -> None:
    specials = {number: text for number, text in SPECIALS.items() if number != 3}
    assert spare_token(Vocabulary(9, specials), SAID, facts_with(2, (0, 2))) == 0


def test_the_first_token_of_texts_is_no_padding() -> None:
    assert spare_token(Vocabulary(9, {0: "<s>"}), "", facts_with(0, (2,), bos=0)) is None


def test_a_vocabulary_is_read_from_tokenizer_json(tmp_path: Path) -> None:
    found = read_vocabulary(spoken_source(tmp_path) / "tokenizer.json")

    assert found.size == VOCABULARY
    assert found.specials[263] == "<|endoftext|>"


def test_the_config_names_special_tokens_by_their_texts() -> None:
    made = tokenizer_config(Vocabulary(9, SPECIALS), "template", facts_with(3, (2,), bos=1), 3)

    assert (made["bos_token"], made["eos_token"], made["pad_token"]) == ("<|im_start|>", "<|im_end|>", "<spare>")
    assert made["chat_template"] == "template"


def test_names_that_the_source_gives_tokens_go_before_those_that_follow_from_their_use() -> None:
    facts = dataclasses.replace(facts_with(3, (0, 2)), named={"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"})

    made = tokenizer_config(Vocabulary(9, SPECIALS), None, facts, 3)

    assert (made["bos_token"], made["eos_token"]) == ("<|im_start|>", "<|im_end|>")
