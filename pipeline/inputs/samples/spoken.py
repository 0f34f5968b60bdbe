"""Measures the ladder of a language model: its next-token distributions on held-out conversations."""

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
from pipeline.graph.accuracy.figures.next_tokens import Divergence
from pipeline.graph.cpu import load_session, run
from pipeline.graph.files.model_file import MODEL
from pipeline.graph.language.host_table import rows_of
from pipeline.graph.language.loop import Arrays, Run, Walk, stored
from pipeline.graph.language.names import ANSWER, TOKENS
from pipeline.inputs.samples.sample_set import stored_calls
from pipeline.model import StageRequest, StageResult

_TEXTS = 4
_DECODED = 40
"""How many of the tokens of a text that are decoded one by one are judged."""
_LONGEST_PROMPT = 256
"""The most tokens that decode reads one by one before an answer; a text with more is judged from its beginning."""
_LEAST = 64
"""On how many tokens the rewritten model is measured; few are enough, as it differs by rounding alone."""


@dataclass(frozen=True)
class SpokenText:
    """The tokens of a conversation, and how many come before its first answer; None if that is not known."""

    tokens: list[int]
    answer: int | None
    name: str = ""


@dataclass(frozen=True)
class SpokenRun:
    """One run of a graph within a text: its inputs, and the original's logits for the same tokens.

    `logits` are float32 [tokens, vocabulary].
    """

    name: str
    given: Arrays
    logits: NDArray[np.float32]


def texts_of(folder: Path, params: Measuring | converse.Params) -> list[SpokenText]:
    """The first few of the held-out conversations; `folder` is the output of a samples step."""
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
    """A run of a graph for each text: on the text's first window or, for decode, on the first token of its answer.

    The original, the model in `folder`, reads what comes before; its keys and values are rounded to the encodings of
    the graph's cache, `edges`. So no run depends on an earlier one. `rows` is the function that :func:`rows_of` gives.
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
    """The original's logits for each text, float32 [tokens, vocabulary], each text in one run."""
    run = runner(folder, language)
    return [np.concatenate(list(Walk(language, 1).run(run, Lengths(len(tokens), 1), tokens))) for tokens in texts]


def runner(folder: Path, language: LanguageFacts) -> Run:
    """A function that runs the model in `folder`, the output of a step."""
    session, rows = load_session(folder / MODEL), rows_of(folder, language)
    return lambda feed: run(session, rows(feed))


def verify_language(request: StageRequest, params: Measuring, language: LanguageFacts) -> StageResult:
    """Measure the rewritten and the quantized model of one bucket against the original, each on its own cache.

    Decode, the bucket of one token, reads each text up to its answer and is judged on the answer, token by token; in
    use prefill reads what comes before. Other buckets are judged on the whole text.
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
    """Where the tokens of a text that decode is judged on begin and end. They begin with the answer, or the text."""
    start = text.answer if text.answer is not None and text.answer <= _LONGEST_PROMPT else 0
    return start, min(start + _DECODED, len(text.tokens))
