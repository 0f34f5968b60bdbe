"""`doit chat:<model>`: questions from the terminal, answers as they come.

How many tokens a second came is said of what they ran on. It says nothing about an NPU.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

from pipeline.chat.built_speaker import CPU, EMULATOR, ChatModel
from pipeline.config.load import ModelConfig
from pipeline.errors import ConfigError
from pipeline.graph.language.speaker import Speaker
from pipeline.inputs.samples.chat import Message, Voice
from pipeline.plain_text import printable
from pipeline.plan.steps import Step
from pipeline.plan.workspace import Workspace

_BROKEN = "\N{REPLACEMENT CHARACTER}"
_LEFT = 2
"""Tokens of the context that an answer leaves free, for what ends it."""


def chat(
    config: ModelConfig, steps: Sequence[Step], workspace: Workspace, *, emulator: bool, say: str, tokens: int
) -> int:
    """Answer `say`, or what is typed until the input ends; each answer has at most `tokens` tokens.

    Raises:
        ConfigError: nothing is built that could answer, or `tokens` is no number of tokens.
        CalibrationError: the template does not take the conversation.
    """
    if tokens < 1:
        raise ConfigError(f"an answer of {tokens} tokens is none", where="command line", remedy="--tokens 200")
    with workspace.store.scratch() as folder:
        model = ChatModel(config, steps, workspace, folder)
        if emulator:
            print("compiling each graph by itself, as the emulator takes no shared binary", flush=True)
        speaker = model.emulated() if emulator else model.on_cpu()
        where = EMULATOR if emulator else CPU
        talk = Talk(model.voice, speaker, where, tokens)
        for question in [say] if say else _typed(sys.stdin):
            for piece in talk.answer(question):
                print(piece, end="", flush=True)
            print(f"\n[{talk.said}]", flush=True)
    return 0


class Talk:
    """A conversation: what was said so far, and the speaker that has read it."""

    def __init__(self, voice: Voice, speaker: Speaker, where: str, most: int) -> None:
        self._voice, self._speaker, self._where, self._most = voice, speaker, where, most
        self._messages: list[Message] = []
        self.said = ""
        """Of the last answer: how many tokens, how fast, and on what."""

    def answer(self, question: str) -> Iterator[str]:
        """The answer to a question, in pieces of whole characters.

        Raises:
            ConfigError: the question alone is longer than the context.
        """
        self._messages.append({"role": "user", "content": question})
        asked = time.monotonic()
        read = self._read()
        began = time.monotonic()
        made: list[int] = []
        yield from pieces(self._voice, self._counted(made))
        seconds = max(time.monotonic() - began, 1e-9)
        self._messages.append({"role": "assistant", "content": self._voice.tokenizer.decode(made)})
        full = "; the context is full, so the next question begins anew" if self._is_full() else ""
        # The first token comes of what was read.
        rate = f", {(len(made) - 1) / seconds:.1f} tokens a second" if len(made) > 1 else ""
        self.said = f"{read} tokens read in {began - asked:.1f} s, {len(made)} answered{rate}, on {self._where}{full}"
        if full:
            self._messages.clear()

    def _counted(self, made: list[int]) -> Iterator[int]:
        for token in self._speaker.answer(min(self._most, self._speaker.room - _LEFT)):
            made.append(token)
            yield token

    def _is_full(self) -> bool:
        return self._speaker.room <= _LEFT + 1

    def _read(self) -> int:
        """Read what is new of the conversation; all of it again where what was read differs. How many tokens it was."""
        tokens = self._voice.encode(self._messages, answer=True)
        if len(tokens) > len(self._speaker.tokens) + self._speaker.room - _LEFT - 1:
            if len(self._messages) == 1:
                self._messages.clear()
                raise ConfigError(
                    f"the question has {len(tokens)} tokens",
                    why=f"the context has {len(self._speaker.tokens) + self._speaker.room}",
                    remedy="ask a shorter one, or build the model with a longer language_model.context",
                )
            del self._messages[:-1]  # what was said before does not fit any more
            return self._read()
        known = self._speaker.tokens
        if tokens[: len(known)] != known or len(tokens) == len(known):
            self._speaker.forget()
        new = tokens[len(self._speaker.tokens) :]
        self._speaker.read(new)
        return len(new)


def pieces(voice: Voice, tokens: Iterable[int]) -> Iterator[str]:
    """The text of tokens as they come; bytes of one character wait for each other."""
    known: list[int] = []
    told = ""
    text = ""
    for token in tokens:
        known.append(token)
        text = voice.tokenizer.decode(known)
        if not text.endswith(_BROKEN) and text.startswith(told) and len(text) > len(told):
            yield printable(text[len(told) :])
            told = text
    if text.startswith(told) and len(text) > len(told):
        yield printable(text[len(told) :])


def _typed(source: TextIO) -> Iterator[str]:
    """Lines that are typed, until the input ends or one says so."""
    print("Ask; an empty line or the end of the input ends it.", flush=True)
    while True:
        print("> ", end="", flush=True)
        line = source.readline().strip()
        if not line:
            print()
            return
        yield line
