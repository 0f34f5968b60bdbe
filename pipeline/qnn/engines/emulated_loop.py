"""The reference loop over contexts on the emulator: what engines are held against."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.contracts.language import LanguageFacts, Lengths
from pipeline.contracts.target import HtpTarget
from pipeline.graph.files.model_file import load_graph
from pipeline.graph.language.loop import Walk
from pipeline.qnn.child import run_apart
from pipeline.qnn.engines.graphs import SpokenGraph


def answer(
    folder: Path,
    language: LanguageFacts,
    graphs: Sequence[SpokenGraph],
    prompt: Sequence[int],
    most: int,
    target: HtpTarget,
    work: Path,
) -> tuple[int, ...]:
    """Up to `most` tokens that are likeliest after a prompt, up to one that ends an answer.

    Contexts are in `folder`, `graphs` are decode and prefill; arrays travel in folders inside `work`.

    Raises:
        VerificationError: a context can't be run.
    """
    return _Speaker(folder, language, graphs, target, work).answer(prompt, most)


class _Speaker:
    def __init__(
        self, folder: Path, language: LanguageFacts, graphs: Sequence[SpokenGraph], target: HtpTarget, work: Path
    ) -> None:
        self._folder, self._target, self._work = folder, target, work
        self._decode, self._prefill = graphs[0], graphs[-1]
        self._stops = language.stops
        self._runs = 0
        self._walk = Walk(language, self._prefill.total - self._prefill.sequence, self._prefill.edges)

    def answer(self, prompt: Sequence[int], most: int) -> tuple[int, ...]:
        """As said above."""
        width = self._prefill.sequence
        logits = np.zeros((1, 1), np.float32)
        for start in range(0, len(prompt), width):
            logits = self._step(self._prefill, prompt[start : start + width])
        made: list[int] = []
        while len(made) < most:
            token = int(np.argmax(logits[-1]))
            if token in self._stops:
                break
            made.append(token)
            if len(made) < most:
                logits = self._step(self._decode, [token])
        return tuple(made)

    def _step(self, graph: SpokenGraph, tokens: Sequence[int]) -> NDArray[np.float32]:
        feed = self._walk.feed(Lengths(graph.sequence, graph.total - graph.sequence), tokens)
        work = self._work / str(self._runs)
        work.mkdir()
        self._runs += 1
        (result,) = run_apart(self._folder, graph.context_model, self._target, [feed], work)
        names = [output.name for output in load_graph(self._folder / graph.context_model).graph.output]
        return self._walk.took(tokens, dict(zip(names, result, strict=True)))
