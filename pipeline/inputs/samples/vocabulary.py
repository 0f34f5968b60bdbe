"""Makes a tokenizer from a vocabulary file, for models whose application looks up characters, words or pieces in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from pipeline.contracts.samples import VocabularyReading
from pipeline.errors import CalibrationError
from pipeline.plain_text import did_you_mean

LARGEST = 1 << 26
"""The most bytes of a vocabulary file; one of 256,000 words has some 3 million."""
_LARGEST_ID = 2**31 - 1
_WITH_ID = re.compile(r"(.*)[ \t]+([0-9]{1,10})")
_BEHIND_ID = re.compile(r"([0-9]{1,10})\t(.+)")  # a tab alone: the token may be a space
_DIGITS = re.compile(r"[0-9]{1,10}")
_HALF = re.compile(r"[\ud800-\udfff]")  # of a character: JSON can write it, texts in UTF-8 never hold it
_FORMS = (
    "a JSON object of tokens and their numbers, a JSON list of tokens, or lines of a token, 'token number' or "
    "'number tab token' each"
)
_NO_TOKEN = ""  # left out, the library takes "<unk>" or "[UNK]" where there is one, whatever the application does
_DEEPEST = 8


def read_vocabularies(path: Path, name: str) -> dict[str, dict[str, int]]:
    """The vocabularies in a file, each by its key: names with points between, or "" for the file as a whole.

    In JSON, every object of tokens and numbers, every object of numbers and tokens, and every list of tokens is one.
    Other files have a token on each line; its number is that of the line, or is written behind it.

    Raises:
        CalibrationError: the file is too large or no text, or it has lines and a token or number occurs twice.
    """
    if path.stat().st_size > LARGEST:
        raise CalibrationError(
            f"{name} is too large", why=f"it has {path.stat().st_size} bytes; {LARGEST} are the most that are read"
        )
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, ValueError) as error:
        raise _none(name, str(error)) from None
    if path.suffix.lower() != ".json":
        return {"": _of_lines(text, name)}
    try:
        return dict(_within(json.loads(text), (), name))
    except (ValueError, RecursionError) as error:
        raise _none(name, str(error)) from None


def vocabulary_tokenizer(said: VocabularyReading, source: Path) -> Tokenizer:
    """The tokenizer for a vocabulary in the model's source.

    Raises:
        CalibrationError: there is no such file or vocabulary, or it lacks a token that the config names.
    """
    path = source / said.file
    if not path.is_file():
        files = sorted(each.relative_to(source).as_posix() for each in source.rglob("*") if each.is_file())
        raise CalibrationError(
            f"the source has no vocabulary {said.file!r}{did_you_mean(said.file, files)}",
            remedy="set calibration.vocabulary.file to the file with the model's tokens",
        )
    tokens = _chosen(read_vocabularies(path, said.file), said)
    for key, token in (("unknown", said.unknown), ("begin", said.begin), ("end", said.end)):
        if token is not None and token not in tokens:
            raise CalibrationError(
                f"calibration.vocabulary.{key} is no token of {said.file}: {token!r}{did_you_mean(token, tokens)}",
                remedy=f"write the token as it is there, or leave '{key}' out",
            )
    return _made(tokens, said)


def _made(tokens: Mapping[str, int], said: VocabularyReading) -> Tokenizer:
    known, unknown = dict(tokens), said.unknown or _NO_TOKEN
    if said.tokens == "pieces":
        tokenizer = Tokenizer(models.WordPiece(vocab=known, unk_token=unknown))
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    else:
        tokenizer = Tokenizer(models.WordLevel(known, unk_token=unknown))
        each = pre_tokenizers.Split(Regex("(?m)."), "isolated")
        tokenizer.pre_tokenizer = each if said.tokens == "characters" else pre_tokenizers.WhitespaceSplit()
    steps: list[normalizers.Normalizer] = []
    if said.normalize is not None:
        steps.append(getattr(normalizers, said.normalize.upper())())
    if said.lowercase:
        steps.append(normalizers.Lowercase())
    if said.drop_marks:
        steps += [normalizers.NFD(), normalizers.StripAccents()]
    if steps:
        tokenizer.normalizer = normalizers.Sequence(steps)
    if said.begin is not None or said.end is not None:
        # Under names of ours: in a template, a token such as $ would be a text.
        special = [
            {"id": name, "ids": [tokens[token]], "tokens": [token]}
            for name, token in (("begin", said.begin), ("end", said.end))
            if token is not None
        ]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=_template(said, "$A:0"), pair=_template(said, "$A:0", "$B:1"), special_tokens=special
        )
    return tokenizer


def _template(said: VocabularyReading, *parts: str) -> list[str]:
    """The parts of a template that puts `begin` before a text and `end` after each part, as BERT does for a pair."""
    made = ["begin:0"] if said.begin is not None else []
    for number, part in enumerate(parts):
        made += [part] + ([f"end:{number}"] if said.end is not None else [])
    return made


def check_known(tokenizer: Tokenizer, text: str, where: str, said: VocabularyReading) -> None:
    """Raise CalibrationError if part of a text is no token and the vocabulary has no token for unknown parts."""
    if said.unknown is not None:
        return
    normal = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer is not None else text
    parts = [part for part, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normal)]
    strange = next((part for part in parts if not _has(tokenizer, part)), None)
    if strange is not None:
        raise CalibrationError(
            f"{strange[:60]!r} is not in {said.file}",
            where=where,
            why="calibration.vocabulary names no token for what it does not have",
            remedy="set calibration.vocabulary.unknown to the token that the application takes then; or bring texts to"
            " the vocabulary's letters with normalize, lowercase or drop_marks; or correct the line",
        )


def _has(tokenizer: Tokenizer, part: str) -> bool:
    try:
        tokenizer.model.tokenize(part)
    except Exception:  # the library has no class for it: "Missing [UNK] token from the vocabulary"
        return False
    return True


def _chosen(found: Mapping[str, dict[str, int]], said: VocabularyReading) -> dict[str, int]:
    keys = [repr(key) for key in found if key]
    if said.key is not None:
        if said.key in found:
            return found[said.key]
        raise CalibrationError(
            f"{said.file} has no vocabulary at {said.key!r}{did_you_mean(said.key, found)}",
            why=f"it has {', '.join(keys[:8]) or 'none'}",
            remedy="set calibration.vocabulary.key to the one with the model's tokens",
        )
    if len(found) == 1:
        return next(iter(found.values()))
    if "" in found:
        return found[""]
    if not found:
        raise _none(said.file, "nothing in it is one")
    raise CalibrationError(
        f"{said.file} holds {len(found)} vocabularies",
        why=f"they are at {', '.join(keys[:8])}",
        remedy="say which it is with calibration.vocabulary.key",
    )


def _within(value: Any, at: tuple[str, ...], name: str) -> Iterator[tuple[str, dict[str, int]]]:
    """Every vocabulary in a JSON value, with its key."""
    tokens = _of_object(value) if isinstance(value, dict) else _of_list(value) if isinstance(value, list) else None
    if tokens is not None:
        yield ".".join(at), tokens
    elif isinstance(value, dict) and len(at) < _DEEPEST:
        for key, inner in value.items():
            yield from _within(inner, (*at, str(key)), name)


def _of_object(value: Mapping[str, Any]) -> dict[str, int] | None:
    """The tokens with their numbers, whichever of the two are the keys; None if the object is no vocabulary."""
    if all(isinstance(token, str) for token in value.values()) and all(_DIGITS.fullmatch(key) for key in value):
        turned = {token: int(number) for number, token in value.items()}
        value = turned if len(turned) == len(value) else {}
    plain = {
        token: number[0] if isinstance(number, list) and len(number) == 1 else number for token, number in value.items()
    }
    return _checked(plain) if all(_is_id(number) for number in plain.values()) else None


def _of_list(value: list[Any]) -> dict[str, int] | None:
    if not all(isinstance(token, str) for token in value) or len(set(value)) != len(value):
        return None
    return _checked({token: number for number, token in enumerate(value)})


def _checked(tokens: Mapping[str, int]) -> dict[str, int] | None:
    """The tokens that a text can contain; None if they are fewer than two, or a number occurs twice."""
    if len({*tokens.values()}) != len(tokens) or len(tokens) < 2:
        return None
    return {token: number for token, number in tokens.items() if token and _HALF.search(token) is None}


def _is_id(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= _LARGEST_ID


def _of_lines(text: str, name: str) -> dict[str, int]:
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    if len(lines) < 2 or "\0" in text:
        raise _none(name, f"it has {len(lines)} lines" if "\0" not in text else "it holds bytes of 0")
    pairs = [_WITH_ID.fullmatch(line) for line in lines if line]
    numbered = [(match[1], int(match[2])) for match in pairs if match is not None]
    if len(numbered) < len(pairs):
        first = [_BEHIND_ID.fullmatch(line) for line in lines if line]
        numbered = [(match[2], int(match[1])) for match in first if match is not None]
    if len(numbered) < len(pairs):
        numbered = [(line, number) for number, line in enumerate(lines)]
    tokens: dict[str, int] = {}
    for token, number in numbered:
        if token in tokens and token:
            raise _none(name, f"the token {token[:60]!r} occurs twice, as {tokens[token]} and as {number}")
        tokens[token] = number
    if len({*tokens.values()}) != len(tokens) or max(tokens.values()) > _LARGEST_ID:
        raise _none(name, "a number occurs twice, or is too large")
    return {token: number for token, number in tokens.items() if token}


def _none(name: str, why: str) -> CalibrationError:
    return CalibrationError(f"{name} is no vocabulary", why=why, remedy=f"expected {_FORMS}")
