"""Reader `chat`: turns conversations into tokens with a language model's own template and tokenizer.

A sample is the tokens alone; later steps run them through the graphs with the graphs' own cache. For a model without a
template, the text is the contents of the messages, one below the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from pipeline.contracts.language import LanguageFacts
from pipeline.errors import CalibrationError
from pipeline.graph.language.names import ANSWER, TEMPLATE, TOKENIZER, TOKENS
from pipeline.inputs.samples.lines import read_lines
from pipeline.inputs.samples.request import Call, ReadRequest
from pipeline.qnn_release.chat_template import TemplateRefusedError, render

_FEWEST = 8
_ROLES = ("system", "user", "assistant")
_DAY = datetime(2026, 1, 1, tzinfo=UTC)
"""The date for templates that ask for one. It is fixed, as samples may not change from day to day."""

Message = Mapping[str, str]


def read(request: ReadRequest) -> Iterator[Call]:
    """One call for each conversation, cut to the context, with the place where its first answer begins.

    Raises:
        CalibrationError: a line is no conversation, or the template can't render it.
    """
    for component, interface in request.interfaces.items():
        folder = request.models[component].parent
        voice = Voice(folder, request.languages.get(component))
        limit = interface.longest("past") + 1
        for line in read_lines(request.existing(request.samples, "file"), request.calibration.max_samples):
            messages = messages_of(line.text or "", line.name)
            tokens = voice.encode(messages, line.name)
            if len(tokens) < _FEWEST:
                raise CalibrationError(
                    "a conversation is too short",
                    where=line.name,
                    why=f"it has {len(tokens)} tokens, {_FEWEST} are due",
                )
            arrays = {TOKENS: np.array(tokens[:limit], np.int32)}
            begin = _first_answer(voice, messages, tokens)
            if begin is not None and begin < limit:
                arrays[ANSWER] = np.array([begin], np.int32)
            yield Call(component, arrays, replace(line, cut=len(tokens) > limit))


def messages_of(text: str, where: str) -> list[Message]:
    """The messages in a line of JSON.

    Raises:
        CalibrationError: it is no list of messages with a role and a content.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _no_chat(where, str(error)) from None
    for message in found if isinstance(found, list) else [None]:
        if not isinstance(message, dict) or {*message} != {"role", "content"}:
            raise _no_chat(where, "each message has a role and a content, and nothing else")
        if message["role"] not in _ROLES or not isinstance(message["content"], str):
            raise _no_chat(where, f"a role is one of {', '.join(_ROLES)}, a content is text")
    if not found:
        raise _no_chat(where, "there is no message")
    return [{"role": str(each["role"]), "content": str(each["content"])} for each in found]


class Voice:
    """Tokenizer and template of a language model, read from the output of ingest in `folder`.

    `language` says which token begins a text and what the template's names for tokens mean. Without it no token is put
    before a text, and the names stand for no text.
    """

    def __init__(self, folder: Path, language: LanguageFacts | None = None) -> None:
        self.tokenizer: Tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        self._bos = language.bos if language else None
        self._named = (language.named if language else None) or {}
        template = folder / TEMPLATE
        self.template = template.read_text("utf-8") if template.is_file() else None
        self.day = _DAY

    @property
    def begin(self) -> str:
        """The text of the token that begins every text; empty if there is none."""
        return self._named.get("bos_token", "") if self._bos is not None else ""

    def on(self, day: datetime) -> Voice:
        """The same on another day, for templates that write the date."""
        other = copy(self)
        other.day = day
        return other

    def render(self, messages: Sequence[Message], *, answer: bool = False, where: str = "") -> str:
        """The text of a conversation; with `answer`, it ends where the model's answer begins.

        Raises:
            CalibrationError: the template is wrong, or refuses the conversation.
        """
        if self.template is None:
            return "\n".join(message["content"] for message in messages)
        try:
            return render(self.template, messages, self._named, self.day.strftime, answer=answer)
        except TemplateRefusedError as error:
            raise CalibrationError(
                f"the model's chat template {'is not valid' if error.broken else 'refuses a conversation'}",
                where=where, why=str(error),
                remedy="correct chat_template in the source, or take a model whose template is valid" if error.broken
                else "change the conversation in this line as the template says",
            ) from error  # fmt: skip

    def encode(self, messages: Sequence[Message], where: str = "", *, answer: bool = False) -> list[int]:
        """The tokens of a conversation; with `answer`, they end where the model's answer begins."""
        tokens: list[int] = self.tokenizer.encode(
            self.render(messages, answer=answer, where=where), add_special_tokens=False
        ).ids
        if self._bos is not None and tokens[:1] != [self._bos]:
            return [self._bos, *tokens]
        return tokens


def _first_answer(voice: Voice, messages: Sequence[Message], tokens: Sequence[int]) -> int | None:
    """How many of `tokens` come before the first answer, which a model is given before it makes the answer.

    None if there is no answer, or if the text before it differs from the text with which the template asks for one.
    """
    asked = next((at for at, message in enumerate(messages) if message["role"] == "assistant"), 0)
    if not asked:
        return None
    try:
        prompt = voice.encode(messages[:asked], answer=True)
    except CalibrationError:
        return None
    return len(prompt) if list(tokens[: len(prompt)]) == prompt and len(prompt) < len(tokens) else None


def _no_chat(where: str, why: str) -> CalibrationError:
    return CalibrationError(
        "a line of the calibration set is no conversation",
        where=where,
        why=why,
        remedy='write each line as [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]',
    )
