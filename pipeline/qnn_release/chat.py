"""Talks to the language model of a release."""

from __future__ import annotations

import importlib
import importlib.util
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .chat_engines import ChatConfig, ChatEngine
from .chat_template import TOKEN_NAMES, TemplateRefusedError, render
from .errors import ArgumentError, InputError, LoadError

TOKENIZER, TEMPLATE = "tokenizer.json", "chat_template.jinja"
_BROKEN = "\N{REPLACEMENT CHARACTER}"


class Chat:
    """A conversation. `messages` has a role and a content for each message; it may be changed between questions.

    Not safe to use from several threads.
    """

    def __init__(self, engine: ChatEngine, config: ChatConfig, folder: Path, runs_on: str) -> None:
        self._engine, self._config, self._folder = engine, config, folder
        self._tokenizer: Any = None
        self.runs_on = runs_on
        self.messages: list[dict[str, str]] = []
        self.tokens_per_second = 0.0
        """Of the last answer, after its first token, on what :attr:`runs_on` says."""

    @property
    def engine(self) -> str:
        """What answers: `onnxruntime-genai` or `numpy`."""
        return self._engine.name

    def ask(self, question: str, *, max_tokens: int = 256) -> Iterator[str]:
        """The answer to a question in the conversation so far, in pieces of text as they are made.

        Raises:
            InputError: the conversation does not fit into the context, or the chat template refuses it.
            LoadError: the packages `tokenizers` and `jinja2`, which this needs, are not installed.
        """
        if not isinstance(question, str):
            raise ArgumentError("a question is text", where="ask", why=f"it is {type(question).__name__}")
        self.messages.append({"role": "user", "content": question})
        try:
            tokens = self.encode(self.messages)
            answer = self.generate(tokens, max_tokens=max_tokens)
        except BaseException:
            del self.messages[-1]
            raise
        made: list[int] = []
        told = ""
        for token in answer:
            made.append(token)
            text = str(self._tokenizer.decode(made))
            if not text.endswith(_BROKEN) and text.startswith(told) and len(text) > len(told):
                yield text[len(told) :]
                told = text
        self.messages.append({"role": "assistant", "content": str(self._tokenizer.decode(made))})

    def generate(self, tokens: Sequence[int], *, max_tokens: int = 256) -> Iterator[int]:
        """The tokens of an answer to `tokens`: at each place the likeliest one. Needs no tokenizer.

        Raises:
            InputError: there are no tokens, or more than the context holds.
            ArgumentError: `max_tokens` is no positive whole number.
        """
        if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
            raise ArgumentError("max_tokens is no number of tokens", where=f"max_tokens={max_tokens!r}")
        room = self._config.context - len(tokens)
        if not tokens or room < 1:
            raise InputError(
                f"a conversation of {len(tokens)} tokens can't be answered",
                where="chat",
                why=f"the context holds {self._config.context}, the answer included",
                next="ask a shorter question, or take what is old out of chat.messages",
            )
        return self._timed([*tokens], min(max_tokens, room))

    def encode(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """The tokens of a conversation, up to where the model's answer begins. Raises what :meth:`ask` raises."""
        self._load_tokenizer()
        path = self._folder / TEMPLATE
        text = "\n".join(message["content"] for message in messages)
        if path.is_file():
            text = self._rendered(path.read_text("utf-8"), messages)
        tokens = [int(token) for token in self._tokenizer.encode(text, add_special_tokens=False).ids]
        if self._config.bos is not None and tokens[:1] != [self._config.bos]:
            tokens.insert(0, self._config.bos)
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens."""
        self._load_tokenizer()
        return str(self._tokenizer.decode([*tokens]))

    def _timed(self, tokens: list[int], most: int) -> Iterator[int]:
        began = 0.0
        for place, token in enumerate(self._engine.answer(tokens, most)):
            if place == 0:
                began = time.perf_counter()
            elif (seconds := time.perf_counter() - began) > 0:
                self.tokens_per_second = place / seconds
            yield token

    def _rendered(self, template: str, messages: Sequence[dict[str, str]]) -> str:
        _package("jinja2")
        config = self._folder / "tokenizer_config.json"
        named = json.loads(config.read_text("utf-8")) if config.is_file() else {}
        tokens = {name: text for name in TOKEN_NAMES if isinstance(text := named.get(name), str)}
        try:
            return render(template, messages, tokens, time.strftime, answer=True)
        except TemplateRefusedError as error:
            what = "is not valid" if error.broken else "does not take the conversation"
            raise InputError(
                f"the model's chat template {what}",
                where=TEMPLATE,
                why=str(error),
                next="give the tokens to chat.generate()" if error.broken else "change chat.messages as it says",
            ) from error

    def _load_tokenizer(self) -> None:
        if self._tokenizer is None:
            self._tokenizer = _package("tokenizers").Tokenizer.from_file(str(self._folder / TOKENIZER))


def installed(package: str) -> bool:
    """Whether a package can be imported here."""
    return importlib.util.find_spec(package) is not None


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise LoadError(
            f"the package {name.partition('.')[0]} is not installed",
            where="chat",
            why="texts become tokens by it; chat.generate() takes tokens and needs none",
            next="pip install tokenizers jinja2",
        ) from error
