"""Tokenizers out of GGUF files: both kinds give back every text, and split as they should."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from pipeline.errors import ModelError
from pipeline.inputs.gguf.file import read_gguf
from pipeline.inputs.gguf.source import gguf_source
from pipeline.inputs.gguf.tokenizer import stops, tokenizer_json
from tests.support.gguf_files import F32, TinySizes, Value, byte_tokens, tiny_gguf, tiny_metadata, write

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


def tokenizer_of(tmp_path: Path, told: Mapping[str, Value | None]) -> Tokenizer:
    merged = {**tiny_metadata(TinySizes()), **told}
    write(tmp_path / "a.gguf", {key: each for key, each in merged.items() if each is not None}, {})
    return Tokenizer.from_str(tokenizer_json(read_gguf(tmp_path / "a.gguf")))


NUMBERS: dict[str, Value] = {
    "tokenizer.ggml.tokens": [*byte_tokens(), "12", "123", "45", "12345"],
    "tokenizer.ggml.token_type": [1] * 260,
    "tokenizer.ggml.merges": ["1 2", "12 3", "4 5", "123 45"],
}


@pytest.mark.parametrize(
    ("pre", "tokens"),
    [
        (None, ["123", "45"]),  # llama.cpp's default is not the pattern of GPT-2
        ("default", ["123", "45"]),
        ("gpt-2", ["12345"]),
        ("llama-bpe", ["123", "45"]),
        ("smollm", ["1", "2", "3", "4", "5"]),
        ("qwen2", ["1", "2", "3", "4", "5"]),
    ],
)
def test_digits_are_cut_as_the_name_says(pre: str | None, tokens: list[str], tmp_path: Path) -> None:
    assert tokenizer_of(tmp_path, {**NUMBERS, "tokenizer.ggml.pre": pre}).encode("12345").tokens == tokens


MARKS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|fim_pad|>", "<unk>", "plain"]


def marked(kinds: list[int]) -> dict[str, Value]:
    tokens = [*byte_tokens(), *MARKS]
    ids = {"eos": 256, "bos": 257, "padding": 256}
    return {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 256 + kinds,
        "tokenizer.ggml.merges": [],
        **{f"tokenizer.ggml.{name}_token_id": at for name, at in ids.items()},
    }


@pytest.mark.parametrize("kind", [1, 3, 4])
def test_a_token_that_ends_answers_does_so_whatever_its_type(kind: int, tmp_path: Path) -> None:
    told = marked([3, 3, kind, kind, 2, 1])
    tokenizer = tokenizer_of(tmp_path, told)
    assert stops(read_gguf(tmp_path / "a.gguf")) == (256, 258, 259)
    assert tokenizer.encode("a<|im_end|><|fim_pad|><unk>").ids[1:] == [258, 259, 260]


@pytest.mark.parametrize("key", ["add_eos_token", "add_sep_token"])
def test_tokens_behind_every_text_are_refused(key: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=key):
        tokenizer_of(tmp_path, {f"tokenizer.ggml.{key}": True})


def test_the_end_of_a_message_may_be_no_end_of_an_answer(tmp_path: Path) -> None:
    tokens = [*byte_tokens(), "<|end|>", "<|return|>", "<|call|>"]
    told: dict[str, Value] = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1] * 256 + [3] * 3}
    tokenizer_of(tmp_path, {**told, "tokenizer.ggml.merges": [], "tokenizer.ggml.eos_token_id": 257})
    assert stops(read_gguf(tmp_path / "a.gguf")) == (257, 258)


@pytest.mark.parametrize(
    ("name", "expected"), [("Phi-3 mini", ["<|im_start|>", "a"]), ("another", ["<|im_start|>", "Ġ", "a"])]
)
def test_blanks_behind_a_mark_of_phi_3_are_dropped(name: str, expected: list[str], tmp_path: Path) -> None:
    tokens = [*byte_tokens(), *MARKS]
    told = {**marked([3, 3, 3, 3, 2, 1]), "general.name": name}
    ids = tokenizer_of(tmp_path, told).encode("<|im_start|> a").ids
    assert [tokens[each] for each in ids] == expected


@pytest.mark.parametrize(
    ("pre", "said", "first"), [("llama-bpe", None, 257), ("qwen2", None, None), ("qwen2", True, 257)]
)
def test_a_text_begins_as_llama_cpp_has_it(pre: str, said: bool | None, first: int | None, tmp_path: Path) -> None:
    told = {**marked([3, 3, 3, 3, 2, 1]), "tokenizer.ggml.pre": pre}
    merged = {**tiny_metadata(TinySizes()), **told, "tokenizer.ggml.add_bos_token": said}
    weights = {"token_embd.weight": ((262, 64), F32, bytes(4 * 262 * 64))}
    write(tmp_path / "a.gguf", {key: each for key, each in merged.items() if each is not None}, weights)
    assert gguf_source(tmp_path / "a.gguf").bos == first
