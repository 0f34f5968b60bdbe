"""Tokenizers out of GGUF files: both kinds give back every text, and split as they should."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from pipeline.errors import ModelError
from pipeline.inputs.gguf.file import read_gguf
from pipeline.inputs.gguf.tokenizer import stops, tokenizer_json
from tests.support.gguf_files import TinySizes, Value, tiny_gguf, tiny_metadata, write

TEXTS = ["then and there", "  two  spaces\n\tand a tab", "Größe 12345 «naïve» 日本語 🙂", "", "a<|im_end|>b"]
PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]


def sentence_piece(*, prefix: bool) -> dict[str, Value]:
    words = ["▁", "t", "h", "e", "n", "a", "d", "r", "th", "the", "▁the", "an", "and", "▁and"]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*PIECES, *words],
        "tokenizer.ggml.scores": [0.0] * len(PIECES) + [-float(20 - len(word)) for word in words],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(words),
        "tokenizer.ggml.add_space_prefix": prefix,
        "tokenizer.ggml.eos_token_id": 2,
    }


@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_gives_back_every_text(text: str, tmp_path: Path) -> None:
    tiny_gguf(tmp_path / "a.gguf")
    tokenizer = Tokenizer.from_str(tokenizer_json(read_gguf(tmp_path / "a.gguf")))

    ids = tokenizer.encode(text).ids

    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_byte_level_follows_its_merges_and_marks_messages(tmp_path: Path) -> None:
    tiny_gguf(tmp_path / "a.gguf")
    file = read_gguf(tmp_path / "a.gguf")
    tokenizer = Tokenizer.from_str(tokenizer_json(file))

    assert tokenizer.encode("then the<|im_end|>12").tokens == ["the", "n", "Ġthe", "<|im_end|>", "1", "2"]
    assert stops(file) == (tokenizer.token_to_id("<|endoftext|>"), tokenizer.token_to_id("<|im_end|>"))


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("text", TEXTS[:4])
def test_sentence_piece_gives_back_every_text(text: str, prefix: bool, tmp_path: Path) -> None:
    write(tmp_path / "a.gguf", sentence_piece(prefix=prefix), {})
    tokenizer = Tokenizer.from_str(tokenizer_json(read_gguf(tmp_path / "a.gguf")))

    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_sentence_piece_takes_the_pieces_of_the_best_score(tmp_path: Path) -> None:
    write(tmp_path / "a.gguf", sentence_piece(prefix=True), {})
    tokenizer = Tokenizer.from_str(tokenizer_json(read_gguf(tmp_path / "a.gguf")))

    assert tokenizer.encode("then and").tokens == ["▁the", "n", "▁and"]


WRONG: dict[str, dict[str, Value]] = {
    "another kind": {"tokenizer.ggml.model": "bert"},
    "a splitting that nobody knows": {"tokenizer.ggml.pre": "of-my-own"},
    "merges of no tokens": {"tokenizer.ggml.merges": ["q zz"]},
    "fewer types than tokens": {"tokenizer.ggml.token_type": [1, 2]},
    "a token twice": {"tokenizer.ggml.tokens": ["a", "a"], "tokenizer.ggml.token_type": [1, 1]},
    "no tokens": {"tokenizer.ggml.tokens": []},
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_a_tokenizer_that_contradicts_itself_is_refused(change: Mapping[str, Value], tmp_path: Path) -> None:
    write(tmp_path / "a.gguf", {**tiny_metadata(TinySizes()), **change}, {})

    with pytest.raises(ModelError, match="no tokenizer can be made"):
        tokenizer_json(read_gguf(tmp_path / "a.gguf"))
