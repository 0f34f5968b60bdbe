"""The ladder of a language model: its distributions of the next token on conversations that calibration did not see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.contracts import converse, quantize
from pipeline.contracts.language import Edges, LanguageFacts, Lengths
from pipeline.contracts.measures import Measuring
from pipeline.contracts.verify import UNMEASURED, Facts
from pipeline.graph.accuracy.language import Divergence
from pipeline.graph.cpu import load_session, run
from pipeline.graph.files.model_file import MODEL
from pipeline.graph.language.host_table import rows_of
from pipeline.graph.language.loop import Arrays, Run, Walk, stored
from pipeline.graph.language.names import ANSWER, TOKENS
from pipeline.inputs.samples.sample_set import stored_calls
from pipeline.model import StageRequest, StageResult

_TEXTS = 4
_DECODED = 40
"""Tokens of each text that are judged, of those that are decoded one by one."""
_LONGEST_PROMPT = 256
"""Tokens that decode reads one by one before an answer; a text with more is judged from its beginning."""
_LEAST = 64
"""Tokens on which the rewritten model, which differs by rounding alone, is measured."""


@dataclass(frozen=True)
class SpokenText:
    """The tokens of a conversation, and how many come before its first answer, where that is known."""

    tokens: list[int]
    answer: int | None
    name: str = ""


@dataclass(frozen=True)
class SpokenRun:
    """One run of a graph in the midst of a text: what it is given, and the original's logits of the same tokens."""

    name: str
    given: Arrays
    logits: NDArray[np.float32]


def texts_of(folder: Path, params: Measuring | converse.Params) -> list[SpokenText]:
    """The conversations that are held out, the first few of them; `folder` is a samples step's."""
    loaded = [(call.name, call.load()) for call in stored_calls(folder, params.component, params.part)[:_TEXTS]]
    return [
        SpokenText([int(token) for token in arrays[TOKENS]], int(arrays[ANSWER][0]) if ANSWER in arrays else None, name)
        for name, arrays in loaded
    ]


def runs_of(
    texts: Sequence[SpokenText],
    folder: Path,
    language: LanguageFacts,
    lengths: Lengths,
    edges: Edges,
    rows: Callable[[Arrays], Arrays],
) -> list[SpokenRun]:
    """A run of a graph for each text: its first window, or of decode the first token of its answer.

    What comes before it the original reads, the model in `folder`; its keys and values are rounded to the encodings of
    the graph's cache, `edges`. So a run depends on no run before it. `rows` is what :func:`rows_of` gives for it.
    """
    original = runner(folder, language)
    found = []
    for text in texts:
        start = min(text.answer or 0, lengths.past, len(text.tokens) - 1) if lengths.sequence == 1 else 0
        window = text.tokens[start : start + lengths.sequence]
        every = Lengths(start + len(window), 1)
        made = original(Walk(language, every.past).feed(every, text.tokens[: every.sequence]))
        walk = Walk(language, lengths.past, edges)
        walk.went(start, {name: stored(array, edges, name) for name, array in made.items() if name != "logits"})
        found.append(
            SpokenRun(text.name, rows(walk.feed(lengths, window)), np.asarray(made["logits"][:, start:], np.float32))
        )
    return found


def reference_logits(
    folder: Path, language: LanguageFacts, texts: Sequence[Sequence[int]]
) -> list[NDArray[np.float32]]:
    """The original's logits of each text, float32 [tokens, vocabulary], all tokens of one in one run."""
    run = runner(folder, language)
    return [np.concatenate(list(Walk(language, 1).run(run, Lengths(len(tokens), 1), tokens))) for tokens in texts]


def runner(folder: Path, language: LanguageFacts) -> Run:
    """Runs the model in the output of a step."""
    session, rows = load_session(folder / MODEL), rows_of(folder, language)
    return lambda feed: run(session, rows(feed))


def verify_language(request: StageRequest, params: Measuring, language: LanguageFacts) -> StageResult:
    """Measure the rewritten and the quantized model of one bucket against the original, each on its own cache.

    A bucket of one token reads each text up to its answer and is judged by what it makes of that, token by token; in
    use prefill reads what comes before. Others are judged by all of the text.
    """
    texts = texts_of(request.inputs["samples"].folder, params)
    if not texts:
        return StageResult(UNMEASURED.to_json())
    lengths = Lengths(params.axes["sequence"], params.axes["past"])
    judged = [_decoded(text) if lengths.sequence == 1 else (0, len(text.tokens)) for text in texts]
    read = [text.tokens[:end] for text, (_, end) in zip(texts, judged, strict=True)]
    truths = reference_logits(request.inputs["ingest"].folder, language, read)
    figures = {}
    for rung, role in (("rewrite", "rewrite"), ("quantization", "quantize")):
        if role not in request.inputs:
            continue
        edges: Edges = quantize.PartFacts.from_json(request.inputs[role].facts).edges if role == "quantize" else {}
        runs = runner(request.inputs[role].folder, language)
        divergence = Divergence()
        for text, truth, (start, end) in zip(texts, truths, judged, strict=True):
            first, last = (start, end) if role == "quantize" else (0, min(end, _LEAST))
            walk = Walk(language, lengths.past, edges)
            made = np.concatenate(list(walk.run(runs, lengths, text.tokens[:last])))
            divergence.add(truth[first:last], made[first:], text.tokens[first:last])
            if role != "quantize":
                break
        figures[rung] = divergence.figures()
        print(f"{rung}: {figures[rung]}")
    facts = Facts(samples=len(texts), shorter=0, rungs={}, outputs={}, score=None, language=figures)
    return StageResult(facts.to_json())


def _decoded(text: SpokenText) -> tuple[int, int]:
    """From where to where decode is judged by a text: where its answer begins, or else from its beginning."""
    start = text.answer if text.answer is not None and text.answer <= _LONGEST_PROMPT else 0
    return start, min(start + _DECODED, len(text.tokens))
