"""Answers of a language model: the likeliest token after what was read, again and again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.contracts.language import Edges, LanguageFacts, Lengths
from pipeline.graph.language.loop import Floats, Run, Walk


@dataclass(frozen=True)
class RunnableGraph:
    """A graph of a language model: its shape, and what runs it."""

    lengths: Lengths
    run: Run


@dataclass(frozen=True)
class Memory:
    """What a speaker has read: the tokens, its walk with the cache, and the last logits."""

    tokens: tuple[int, ...]
    walk: Walk
    last: Floats | None


class Speaker:
    """Two graphs and one cache: prefill reads, decode answers. What was read stays until :meth:`forget`."""

    def __init__(
        self, facts: LanguageFacts, decode: RunnableGraph, prefill: RunnableGraph, edges: Edges | None = None
    ) -> None:
        self._facts, self._edges = facts, edges
        self._decode, self._prefill = decode, prefill
        self.tokens: list[int] = []
        """All that is in the cache."""
        self.forget()

    @property
    def room(self) -> int:
        """Tokens that can still be taken in before the cache forgets the first."""
        return self._decode.lengths.total - len(self.tokens)

    @property
    def lead(self) -> float:
        """By how much the logit of the likeliest next token is above the second's; infinite where nothing was read."""
        if self._last is None:
            return float("inf")
        second, first = np.partition(self._last, -2)[-2:]
        return float(first - second)

    def forget(self) -> None:
        """Begin anew, with an empty cache."""
        self.tokens.clear()
        self._walk = Walk(self._facts, self._prefill.lengths.past, self._edges)
        self._last: Floats | None = None

    @property
    def memory(self) -> Memory:
        """What was read so far; to go on from it later, once, `forget` before anything else is read."""
        return Memory((*self.tokens,), self._walk, self._last)

    def resume(self, memory: Memory) -> None:
        """Go on from what was read before."""
        self.tokens[:] = memory.tokens
        self._walk, self._last = memory.walk, memory.last

    def read(self, tokens: Sequence[int]) -> None:
        """Take in tokens, a window at a time; one at a time where prefill's cache is too short for what was read."""
        rest = [*tokens]
        while rest:
            fits = len(self.tokens) <= self._prefill.lengths.past
            graph = self._prefill if fits else self._decode
            window, rest = rest[: graph.lengths.sequence], rest[graph.lengths.sequence :]
            self._run(graph, window)

    def answer(self, most: int) -> Iterator[int]:
        """The tokens of an answer, each as it is found; it ends before one that ends answers, or after `most`."""
        for left in range(min(most, self.room), 0, -1):
            if self._last is None:
                return
            token = int(np.argmax(self._last))
            if token in self._facts.stops:
                return
            yield token
            if left > 1:
                self._run(self._decode, [token])

    def _run(self, graph: RunnableGraph, tokens: Sequence[int]) -> None:
        (rows,) = self._walk.run(graph.run, graph.lengths, tokens)
        self._last = rows[-1]
        self.tokens += tokens
