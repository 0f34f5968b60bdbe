"""Makes a `tokenizer.json` of the tokenizers library from the tokenizer in a GGUF file.

Two kinds are read: `gpt2`, byte-level BPE with its merges, and `llama`, SentencePiece BPE, whose merges follow from the
scores of its pieces. The pattern that splits a text before BPE is not in the file, only its name, `tokenizer.ggml.pre`;
the patterns for the names are those of llama.cpp (`src/llama-vocab.cpp`). An unknown name is refused, as a wrong
pattern gives other tokens than those that the model was trained on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.errors import ModelError
from pipeline.inputs.gguf.file import GgufFile
from pipeline.model import Json

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
"""Types of tokens in the file; 1 is an ordinary token, 5 an unused one, 6 a byte."""
_SPACE = "\u2581"
_ENDS = frozenset({"<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>"})

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_WORDS}|\p{{N}}|{_REST}"
_PATTERNS: Mapping[str, str] = {
    "llama-bpe": _LLAMA3, "llama3": _LLAMA3, "llama-v3": _LLAMA3, "smaug-bpe": _LLAMA3, "qwen2": _QWEN2,
    "qwen35": _QWEN2, "stablelm2": _QWEN2,
}  # fmt: skip
_BY_DIGIT = ("smollm", "starcoder", "refact", "command-r", "codeshell")
_PLAIN = ("default", "gpt-2", "gpt2", "phi-2", "olmo", "jais", "")


def tokenizer_json(file: GgufFile) -> str:
    """The text of the tokenizer.json.

    Raises:
        ModelError: the file has no tokenizer, one of another kind, or one that contradicts itself.
    """
    kind = file.text("tokenizer.ggml.model")
    tokens = file.strings("tokenizer.ggml.tokens")
    types = file.numbers("tokenizer.ggml.token_type").astype(np.int64).tolist() or [1] * len(tokens)
    if not tokens or len(types) != len(tokens):
        raise _refused(file, f"it has {len(tokens)} tokens and {len(types)} types of tokens")
    if kind == "gpt2":
        made = _byte_level(file, tokens)
    elif kind == "llama":
        made = _sentence_piece(file, tokens, types)
    else:
        raise _refused(file, f"its kind is {kind!r}; those that are read are gpt2 and llama")
    added = [_added(number, token, types[number]) for number, token in enumerate(tokens) if _is_added(types[number])]
    whole: dict[str, Json] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [*added],
        "post_processor": None,
        **made,
    }
    return json.dumps(whole, ensure_ascii=False, sort_keys=True)


def special(file: GgufFile, name: str) -> int | None:
    """The number of a special token, such as `bos` or `eos`; None if the file names none."""
    found = file.number(f"tokenizer.ggml.{name}_token_id")
    return int(found) if found is not None and 0 <= found < 1 << 31 else None


def stops(file: GgufFile) -> tuple[int, ...]:
    """The tokens that end an answer: the ends of a text, of a turn, and of a message."""
    known = {special(file, name) for name in ("eos", "eot", "eom")}
    types = file.numbers("tokenizer.ggml.token_type")
    for number, token in enumerate(file.strings("tokenizer.ggml.tokens")):
        if token in _ENDS and number < types.size and types[number] == _CONTROL:
            known.add(number)
    return tuple(sorted(number for number in known if number is not None))


def _byte_level(file: GgufFile, tokens: Sequence[str]) -> dict[str, Json]:
    vocabulary = _numbered(file, tokens)
    merges: list[Json] = []
    for merge in file.strings("tokenizer.ggml.merges"):
        left, between, right = merge.partition(" ")
        if not (between and left in vocabulary and right in vocabulary and left + right in vocabulary):
            raise _refused(file, f"the merge {merge[:60]!r} is not of two tokens that make a third")
        merges.append([left, right])
    pre = file.text("tokenizer.ggml.pre", "") or ""
    byte_level: dict[str, Json] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    if pre in _PATTERNS:
        split: dict[str, Json] = {
            "type": "Split", "pattern": {"Regex": _PATTERNS[pre]}, "behavior": "Isolated", "invert": False
        }  # fmt: skip
        parts: list[Json] = [split, {**byte_level, "use_regex": False}]
    elif pre in _BY_DIGIT:
        parts = [{"type": "Digits", "individual_digits": True}, {**byte_level, "use_regex": True}]
    elif pre in _PLAIN:
        parts = [{**byte_level, "use_regex": True}]
    else:
        known = ", ".join(sorted(each for each in (*_PATTERNS, *_BY_DIGIT, *_PLAIN) if each))
        raise _refused(file, f"it splits texts as {pre!r} does; known are {known}")
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": parts},
        "decoder": {**byte_level, "use_regex": True},
        "model": _bpe(vocabulary, merges, ignore_merges=pre in ("llama-bpe", "llama3", "llama-v3")),
    }


def _sentence_piece(file: GgufFile, tokens: Sequence[str], types: Sequence[int]) -> dict[str, Json]:
    vocabulary = _numbered(file, tokens)
    scores = file.numbers("tokenizer.ggml.scores").tolist()
    if len(scores) != len(tokens):
        raise _refused(file, f"it has {len(tokens)} tokens and {len(scores)} scores")
    pairs: list[tuple[int, int, int]] = []
    for number, token in enumerate(tokens):
        for at in range(1, len(token)) if types[number] == 1 else ():
            left, right = vocabulary.get(token[:at]), vocabulary.get(token[at:])
            if left is not None and right is not None:
                pairs.append((number, left, right))
    made = np.array(pairs, np.int64).reshape(-1, 3)
    order = np.lexsort((made[:, 2], made[:, 1], -np.array(scores)[made[:, 0]]))
    merges: list[Json] = [[tokens[left], tokens[right]] for _, left, right in made[order].tolist()]
    prefixed = file.flag("tokenizer.ggml.add_space_prefix") is not False
    normalizers: list[Json] = [{"type": "Prepend", "prepend": _SPACE}] if prefixed else []
    normalizers.append({"type": "Replace", "pattern": {"String": " "}, "content": _SPACE})
    decoders: list[Json] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefixed:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN), None)
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {**_bpe(vocabulary, merges), "byte_fallback": True, "fuse_unk": True, "unk_token": unknown},
    }


def _bpe(vocabulary: Mapping[str, int], merges: list[Json], *, ignore_merges: bool = False) -> dict[str, Json]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": ignore_merges,
        "vocab": {**vocabulary},
        "merges": merges,
    }


def _numbered(file: GgufFile, tokens: Sequence[str]) -> dict[str, int]:
    found = {token: number for number, token in enumerate(tokens)}
    if len(found) < len(tokens):
        raise _refused(file, f"{len(tokens) - len(found)} of its tokens are there twice")
    return found


def _is_added(kind: int) -> bool:
    return kind in (_CONTROL, _USER_DEFINED)


def _added(number: int, token: str, kind: int) -> Json:
    plain: dict[str, Json] = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": number, "content": token, "special": kind == _CONTROL, **plain}


def _refused(file: GgufFile, why: str) -> ModelError:
    return ModelError(
        f"no tokenizer can be made of {file.path.name}",
        why=why,
        remedy="take the model as safetensors, whose tokenizer.json is read as it is: file: model.safetensors",
    )
