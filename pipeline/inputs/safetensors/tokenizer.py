"""Reads single tokens from a tokenizer.json as JSON: nothing is tokenized, and no native code sees the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

from pipeline.inputs.safetensors.index import parsed, refused
from pipeline.model import Json

_LARGEST = 1 << 28
_MOST_PROCESSORS = 100


class TokenizerJson:
    """The tokenizer in a file, and its text."""

    def __init__(self, path: Path) -> None:
        """Raises ModelError if the file is too large, or is no JSON object with a model."""
        if path.stat().st_size > _LARGEST:
            raise refused(path.name, f"it has {path.stat().st_size} bytes; {_LARGEST} are the most")
        raw = path.read_bytes()
        self._values = parsed(raw, path.name)
        if not isinstance(self._values.get("model"), dict):
            raise refused(path.name, "it has no 'model'")
        self.text = raw.decode("utf-8")

    def number(self, token: str) -> int | None:
        """The number of the token with this text; None if there is none."""
        return self._added[token][0] if token in self._added else _natural(self._vocabulary.get(token))

    def is_special(self, token: str) -> bool:
        """Whether the file marks a token as special, so that it stands for no text."""
        return token in self._added and self._added[token][1]

    @property
    def first(self) -> str | None:
        """The token that is put before every text; None if there is none."""
        for processor in self._processors():
            single = processor.get("single")
            first = single[0] if isinstance(single, list) and single else None
            token = first.get("SpecialToken") if isinstance(first, dict) else None
            name = token.get("id") if isinstance(token, dict) else None
            if isinstance(name, str):
                return name
        return None

    @cached_property
    def _added(self) -> dict[str, tuple[int, bool]]:
        found: dict[str, tuple[int, bool]] = {}
        told = self._values.get("added_tokens")
        for entry in told if isinstance(told, list) else []:
            number = _natural(entry.get("id")) if isinstance(entry, dict) else None
            if isinstance(entry, dict) and isinstance(entry.get("content"), str) and number is not None:
                found[str(entry["content"])] = number, entry.get("special") is True
        return found

    @property
    def _vocabulary(self) -> Mapping[str, Json]:
        model = self._values["model"]
        told = model.get("vocab") if isinstance(model, dict) else None
        return told if isinstance(told, dict) else {}

    def _processors(self) -> Iterator[Mapping[str, Json]]:
        """The steps after tokenizing, with a sequence of steps taken apart."""
        told = self._values.get("post_processor")
        inner = told.get("processors") if isinstance(told, dict) else None
        for each in [told, *(inner[:_MOST_PROCESSORS] if isinstance(inner, list) else [])]:
            if isinstance(each, dict):
                yield each


def _natural(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31 else None
