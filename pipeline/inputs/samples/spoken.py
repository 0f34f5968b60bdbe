"""The ladder of a language model: its distributions of the next token on conversations that calibration did not see."""

from __future__ import annotations

from collections.abc import Sequence
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
from pipeline.graph.language.loop import Run, Walk
from pipeline.graph.language.names import TOKENS
from pipeline.inputs.samples.sample_set import stored_calls
from pipeline.model import StageRequest, StageResult

_TEXTS = 4
_DECODED = 40
"""Tokens of each text that are decoded one by one."""
_LEAST = 64
"""Tokens on which the rewritten model, which differs by rounding alone, is measured."""


def texts_of(folder: Path, params: Measuring | converse.Params) -> list[list[int]]:
    """The tokens of the conversations that are held out, the first few of them; `folder` is a samples step's."""
    calls = stored_calls(folder, params.component, params.part)[:_TEXTS]
    return [[int(token) for token in call.load()[TOKENS]] for call in calls]


def reference_logits(folder: Path, language: LanguageFacts, tokens: Sequence[int]) -> NDArray[np.float32]:
    """The original's logits, float32 [tokens, vocabulary], all tokens in one run."""
    lengths = Lengths(len(tokens), 1)
    walk = Walk(language, lengths.past)
    return np.concatenate(list(walk.run(runner(folder), lengths, tokens)))


def runner(folder: Path) -> Run:
    """Runs the model in the output of a step."""
    session = load_session(folder / MODEL)
    return lambda feed: run(session, feed)


def verify_language(request: StageRequest, params: Measuring, language: LanguageFacts) -> StageResult:
    """Measure the rewritten and the quantized model of one bucket against the original, each on its own cache.

    A bucket of one token decodes the beginning of each text, token by token; others read all of it.
    """
    texts = texts_of(request.inputs["samples"].folder, params)
    if not texts:
        return StageResult(UNMEASURED.to_json())
    lengths = Lengths(params.axes["sequence"], params.axes["past"])
    if lengths.sequence == 1:
        texts = [tokens[:_DECODED] for tokens in texts]
    truths = [reference_logits(request.inputs["ingest"].folder, language, tokens) for tokens in texts]
    figures = {}
    for rung, role in (("rewrite", "rewrite"), ("quantization", "quantize")):
        if role not in request.inputs:
            continue
        edges: Edges = quantize.PartFacts.from_json(request.inputs[role].facts).edges if role == "quantize" else {}
        runs = runner(request.inputs[role].folder)
        divergence = Divergence()
        for tokens, truth in zip(texts, truths, strict=True):
            read = tokens if role == "quantize" else tokens[:_LEAST]
            walk = Walk(language, lengths.past, edges)
            made = np.concatenate(list(walk.run(runs, lengths, read)))
            divergence.add(truth[: len(read)], made, read)
            if role != "quantize":
                break
        figures[rung] = divergence.figures()
        print(f"{rung}: {figures[rung]}")
    facts = Facts(samples=len(texts), shorter=0, rungs={}, outputs={}, score=None, language=figures)
    return StageResult(facts.to_json())
