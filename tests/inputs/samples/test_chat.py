"""Conversations as tokens, through a language model's own template."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from pipeline.contracts.samples import Reading
from pipeline.contracts.values import TensorSpec
from pipeline.graph.language.names import TEMPLATE, TOKENIZER, TOKENS
from pipeline.inputs.samples.chat import read
from pipeline.inputs.samples.conform import Interface
from pipeline.inputs.samples.request import ReadRequest

WORDS = ["<bos>", "a", "b", "c"]


def tokens_of(folder: Path, template: str, bos: int | None) -> list[int]:
    """What the reader makes of one conversation."""
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="a"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(folder / TOKENIZER))
    (folder / TEMPLATE).write_text(template, "utf-8")
    chats = folder / "chats.jsonl"
    chats.write_text(json.dumps([{"role": "user", "content": "b c b c b c b c"}]) + "\n", "utf-8")
    interface = Interface((TensorSpec("past", "float32", (1, 64)),), {"512": {"past": 511}}, {})
    begins = {} if bos is None else {"model": bos}
    request = ReadRequest(
        Reading("chat"), {"model": interface}, {"model": folder / "model.onnx"}, folder, chats, None, begins
    )
    (call,) = read(request)
    return [int(token) for token in call.arrays[TOKENS]]


@pytest.mark.parametrize("template", ["{{ messages[0]['content'] }}", "{{ bos_token }} {{ messages[0]['content'] }}"])
def test_a_text_begins_with_the_token_that_the_model_begins_with(template: str, tmp_path: Path) -> None:
    assert tokens_of(tmp_path, template, 0)[:3] == [0, 2, 3]  # once, whether the template writes it or not


def test_a_model_without_one_begins_with_the_text(tmp_path: Path) -> None:
    assert tokens_of(tmp_path, "{{ messages[0]['content'] }}", None)[:2] == [2, 3]
