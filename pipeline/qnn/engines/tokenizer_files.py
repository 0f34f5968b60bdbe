"""Makes what engines need beside `tokenizer.json`: a padding token, and the `tokenizer_config.json` of genai."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.contracts.language import LanguageFacts
from pipeline.model import Json

TOKENIZER_CONFIG = "tokenizer_config.json"
_CLASS = "PreTrainedTokenizerFast"
"""The class by which onnxruntime-extensions takes all that it has to know from `tokenizer.json`."""


@dataclass(frozen=True)
class Vocabulary:
    """A `tokenizer.json`, as far as engines depend on it: how many tokens it knows, and those with a part of their own.

    `specials` has the texts of control tokens by their numbers.
    """

    size: int
    specials: Mapping[int, str]


def read_vocabulary(path: Path) -> Vocabulary:
    """What a `tokenizer.json` says; nothing for a file that is none."""
    try:
        raw = json.loads(path.read_text("utf-8"))
        added = raw["added_tokens"]
        known = {*raw["model"]["vocab"], *(str(each["content"]) for each in added)}
        specials = {int(each["id"]): str(each["content"]) for each in added if each["special"]}
    except (OSError, ValueError, KeyError, TypeError):
        return Vocabulary(0, {})
    return Vocabulary(len(known), specials)


def spare_token(vocabulary: Vocabulary, said: str, facts: LanguageFacts) -> int | None:
    """A token for padding, which no prompt may hold; None if there is none.

    It is the model's own padding token, unless that is in `said`, the tokens that the template writes. Else it is a
    control token that the template does not write, if possible one that does not end an answer. onnxruntime-genai would
    take a token of the prompt for padding otherwise.
    """
    unsaid = [number for number, text in vocabulary.specials.items() if text not in said and number != facts.bos]
    if facts.pad in unsaid:
        return facts.pad
    return next(iter(sorted(unsaid, key=lambda number: (number in facts.stops, number))), None)


def tokenizer_config(vocabulary: Vocabulary, template: str | None, facts: LanguageFacts, pad: int) -> dict[str, Json]:
    """`tokenizer_config.json`, with the chat template."""
    named = {"bos_token": facts.bos, "eos_token": facts.stops[0] if facts.stops else None, "pad_token": pad}
    texts = {name: vocabulary.specials.get(number) for name, number in named.items() if number is not None}
    return {
        "tokenizer_class": _CLASS,
        "add_bos_token": False,
        "add_eos_token": False,
        **{name: text for name, text in texts.items() if text is not None},
        **(facts.named or {}),
        **({"chat_template": template} if template else {}),
    }
