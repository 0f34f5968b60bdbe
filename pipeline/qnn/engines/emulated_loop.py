"""Runs the reference loop over contexts on the emulator, to compare engines with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path

from pipeline.contracts.language import LanguageFacts, Lengths
from pipeline.contracts.target import HtpTarget
from pipeline.graph.files.model_file import load_graph
from pipeline.graph.language.host_table import rows_of
from pipeline.graph.language.loop import Arrays
from pipeline.graph.language.speaker import RunnableGraph, Speaker
from pipeline.qnn.child import run_apart
from pipeline.qnn.engines.graphs import SpokenGraph, longest_pair


def answer(
    folder: Path,
    language: LanguageFacts,
    graphs: Sequence[SpokenGraph],
    prompt: Sequence[int],
    most: int,
    target: HtpTarget,
    work: Path,
) -> tuple[int, ...]:
    """The likeliest tokens after a prompt: at most `most`, and none after one that ends an answer.

    Contexts, and a table on the host if any, are in `folder`, `graphs` are decode and prefill; arrays travel in folders
    inside `work`.

    Raises:
        VerificationError: a context can't be run.
    """
    speaker = emulated_speaker(folder, language, graphs, target, work)
    speaker.read(prompt)
    return tuple(speaker.answer(most))


def emulated_speaker(
    folder: Path, language: LanguageFacts, graphs: Sequence[SpokenGraph], target: HtpTarget, work: Path
) -> Speaker:
    """A speaker over contexts, each run of which is a process of its own; arguments are those of :func:`answer`."""
    numbers, rows = count(), rows_of(folder, language)

    def runnable(graph: SpokenGraph) -> RunnableGraph:
        names = [output.name for output in load_graph(folder / graph.context_model).graph.output]

        def run(feed: Arrays) -> Arrays:
            here = work / str(next(numbers))
            here.mkdir()
            (result,) = run_apart(folder, graph.context_model, target, [rows(feed)], here, log=work / "log")
            return dict(zip(names, result, strict=True))

        return RunnableGraph(Lengths(graph.sequence, graph.total - graph.sequence), run)

    decode, prefill = longest_pair(graphs)
    return Speaker(language, runnable(decode), runnable(prefill), prefill.edges)
