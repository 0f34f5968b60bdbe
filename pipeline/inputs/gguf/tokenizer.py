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
from pipeline.inputs.gguf.file import GgufFile, StoredArray
from pipeline.model import Json

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
"""Types of tokens in the file; 1 is an ordinary token, 5 an unused one, 6 a byte."""
_SPACE = "\u2581"
_ENDS = frozenset({
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
    "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>",
    "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[",
})  # fmt: skip
"""Texts of tokens that end an answer, whatever their types (`special_eog_ids` of llama.cpp)."""
_OF_FILLING: Mapping[str, frozenset[str]] = {
    "fim_pre": frozenset({
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>", "<|code_prefix|>",
        "<|prefix|>",
    }),
    "fim_suf": frozenset({
        "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>", "<|code_suffix|>",
        "<|suffix|>",
    }),
    "fim_mid": frozenset({
        "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>", "<|code_middle|>",
        "<|middle|>",
    }),
    "fim_pad": frozenset({"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"}),
    "fim_rep": frozenset({"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"}),
    "fim_sep": frozenset({"<|file_sep|>"}),
}  # fmt: skip
"""Texts of control tokens for text that is filled in, by the key that names the token in place of its text."""
_FILLING_ENDS = ("fim_pad", "fim_rep", "fim_sep")
"""Those that end an answer."""

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_REST = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BLANKS}"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (rf"{_WORDS}|\p{{N}}{{1,3}}|{_REST}",)
_QWEN2 = (rf"{_WORDS}|\p{{N}}|{_REST}",)
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_BLANKS}",
)
_DIGITS = (r"\p{N}", _GPT2)
_DEFAULT = (r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")
_FALCON = (r"[\p{P}$+<=>^~|`]+", _GPT2, r"[0-9][0-9][0-9]")
# llama.cpp has no classes for case: letters but a to z count as upper, letters but A to Z as lower.
_UPPER, _LOWER = r"(?:(?=\p{L})[^a-z])", r"(?:(?=\p{L})[^A-Z])"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
_ENDED = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN = (_CASED % ("", "") + rf"|\p{{N}}|{_ENDED}|{_BLANKS}",)
_GPT4O = (_CASED % (f"{_CONTRACTIONS}?", f"{_CONTRACTIONS}?") + rf"|\p{{N}}{{1,3}}|{_ENDED}|{_BLANKS}",)
_PATTERNS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "smaug-bpe", "dbrx"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2"), _QWEN2),
    "qwen35": _QWEN35,
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _DIGITS),
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "jais", "mpt"), (_GPT2,)),
    **dict.fromkeys(("", "default"), _DEFAULT),
    "falcon": _FALCON,
    "tekken": _TEKKEN,
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O),
}
"""The patterns that split a text, one after another: each splits what the ones before it made."""
_WHOLE_WORDS = frozenset({"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "tekken"})
"""Names with which a word that is a token is taken as that, whatever its merges, and a text begins with `bos`."""


def tokenizer_json(file: GgufFile) -> str:
    """The text of the tokenizer.json.

    Raises:
        ModelError: the file has no tokenizer, one of another kind, or one that contradicts itself.
    """
    kind = file.text("tokenizer.ggml.model")
    tokens = _tokens(file)
    types = file.numbers("tokenizer.ggml.token_type").astype(np.int64).tolist() or [1] * len(tokens)
    if not tokens or len(types) != len(tokens):
        raise _refused(file, f"it has {len(tokens)} tokens and {len(types)} types of tokens")
    for key in ("add_eos_token", "add_sep_token"):
        if file.flag(f"tokenizer.ggml.{key}"):
            raise _refused(file, f"it puts a token behind every text ('tokenizer.ggml.{key}'), as encoders do")
    if file.numbers("tokenizer.ggml.suppress_tokens").size:
        raise _refused(file, "some tokens may not be generated ('tokenizer.ggml.suppress_tokens')")
    types = _with_controls(file, tokens, types)
    if kind == "gpt2":
        made = _byte_level(file, tokens)
    elif kind == "llama":
        made = _sentence_piece(file, tokens, types)
    else:
        raise _refused(file, f"its kind is {kind!r}; those that are read are gpt2 and llama")
    stripping = any(name in (file.text("general.name") or "").lower() for name in ("phi-3", "phi3"))
    added = [
        _added(number, token, types[number], stripping and token not in _KEEP_BLANKS)
        for number, token in enumerate(tokens)
        if types[number] in (_UNKNOWN, _CONTROL, _USER_DEFINED)
    ]
    whole: dict[str, Json] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [*added],
        "post_processor": None,
        **made,
    }
    return json.dumps(whole, ensure_ascii=False, sort_keys=True)


_KEEP_BLANKS = frozenset({"<unk>", "<s>", "<|endoftext|>"})
"""Special tokens of Phi 3 that blanks may follow: llama.cpp drops those behind the others, by the model's name."""


def _tokens(file: GgufFile) -> list[str]:
    return [token or f"[EMPTY_{number}]" for number, token in enumerate(file.strings("tokenizer.ggml.tokens"))]


def _with_controls(file: GgufFile, tokens: Sequence[str], types: Sequence[int]) -> list[int]:
    """The types, where tokens that look like control tokens are such, as llama.cpp has it."""
    named = {text for key, texts in _OF_FILLING.items() if special(file, key) is None for text in texts}
    return [_CONTROL if token in _ENDS or token in named else kind for token, kind in zip(tokens, types, strict=True)]


def special(file: GgufFile, name: str) -> int | None:
    """The number of a special token, such as `bos` or `eos`; None if the file names none.

    SentencePiece's own numbers stand for `bos` and `eos` where the file does not say them, as in llama.cpp.
    """
    found = file.number(f"tokenizer.ggml.{name}_token_id")
    if found is None or not 0 <= found < _count(file):
        return _OF_SENTENCE_PIECE.get(name) if file.text("tokenizer.ggml.model") == "llama" else None
    return int(found)


_OF_SENTENCE_PIECE: Mapping[str, int] = {"bos": 1, "eos": 2}


def _count(file: GgufFile) -> int:
    stored = file.metadata.get("tokenizer.ggml.tokens")
    return stored.count if isinstance(stored, StoredArray) else 0


def begins(file: GgufFile) -> bool:
    """Whether every text begins with `bos`."""
    said = file.flag("tokenizer.ggml.add_bos_token")
    if said is not None:
        return said
    return file.text("tokenizer.ggml.model") == "llama" or file.text("tokenizer.ggml.pre", "") in _WHOLE_WORDS


def stops(file: GgufFile) -> tuple[int, ...]:
    """The tokens that end an answer: the ends of a text, of a turn, and of a message."""
    tokens = _tokens(file)
    ends = {token: number for number, token in enumerate(tokens) if token in _ENDS}
    # The end of a message of such models is not that of an answer (src/llama-vocab.cpp: o200k_harmony, solar-open).
    several = {"<|return|>", "<|call|>"} <= {*ends} or ("<|flush|>" in ends and {"<|call|>", "<|calls|>"} & {*ends})
    if several:
        ends.pop("<|end|>", None)
    if "<|tool_response>" in ends:
        ends.pop("</s>", None)
    known = {special(file, name) for name in ("eos", "eot", "eom")} | {*ends.values()}
    for name in _FILLING_ENDS:
        said = special(file, name)
        known |= {said} if said is not None else {n for n, token in enumerate(tokens) if token in _OF_FILLING[name]}
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
    if pre not in _PATTERNS:
        known = ", ".join(sorted(each for each in _PATTERNS if each))
        raise _refused(file, f"it splits texts as {pre[:40]!r} does ('tokenizer.ggml.pre'); known are {known}")
    byte_level: dict[str, Json] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    parts: list[Json] = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in _PATTERNS[pre]
    ]
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*parts, {**byte_level, "use_regex": False}]},
        "decoder": {**byte_level, "use_regex": True},
        "model": _bpe(vocabulary, merges, ignore_merges=pre in _WHOLE_WORDS),
    }


def _sentence_piece(file: GgufFile, tokens: Sequence[str], types: Sequence[int]) -> dict[str, Json]:
    vocabulary = _numbered(file, tokens)
    scores = file.numbers("tokenizer.ggml.scores").tolist()
    if len(scores) != len(tokens):
        raise _refused(file, f"it has {len(tokens)} tokens and {len(scores)} scores")
    pairs: list[tuple[int, int, int]] = []
    for number, token in enumerate(tokens):
        for at in range(1, len(token)) if types[number] not in (_UNKNOWN, _CONTROL, _USER_DEFINED) else ():
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


def _added(number: int, token: str, kind: int, rstrip: bool) -> Json:
    plain: dict[str, Json] = {"single_word": False, "lstrip": False, "rstrip": rstrip, "normalized": False}
    return {"id": number, "content": token, "special": kind != _USER_DEFINED, **plain}


def _refused(file: GgufFile, why: str) -> ModelError:
    return ModelError(
        f"no tokenizer can be made of {file.path.name}",
        why=why,
        remedy="take the model as safetensors, whose tokenizer.json is read as it is: file: model.safetensors",
    )
