"""words: write down held-out speech by the original and by what was made of it, and compare.

Both read the same features. The distributions of the next token are compared after the original's tokens; the words are
those of greedy decoding, each model on its own cache.

Inputs: ``fetch``, ``samples``, and of both components ``original/<component>`` and ``made/<component>``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from pipeline.contracts.words import Facts, Params, WordFigures
from pipeline.graph.accuracy.figures.next_tokens import Divergence
from pipeline.graph.files.model_file import MODEL
from pipeline.inputs.samples.sample_set import stored_calls
from pipeline.inputs.samples.speech import FEATURES, transcriber
from pipeline.model import StageRequest, StageResult
from pipeline.progress import counted


def run(request: StageRequest) -> StageResult:
    """Compare the words of every held-out window."""
    params = Params.from_json(request.params)
    calls = stored_calls(request.inputs["samples"].folder, "encoder", params.part)
    if not calls:
        return StageResult(Facts(None).to_json())
    source = request.inputs["fetch"].folder
    graphs = {role: request.inputs[role].folder / MODEL for role in request.inputs if "/" in role}
    original, made = (
        transcriber(source, graphs[f"{role}/encoder"], graphs[f"{role}/decoder"]) for role in ("original", "made")
    )
    setting, divergence = original.setting, Divergence()
    words = wrong = most = 0
    worst = ("", "", "")
    for call in counted(calls, "window", len(calls)):
        features = call.load()[FEATURES]
        crossing, own = original.encode_features(features), made.encode_features(features)
        language = original.heard(crossing) if setting.languages else ""
        prompt = setting.prompt(language, "transcribe", times=False)
        truth = original.decode(crossing, prompt)
        forced = made.decode(own, prompt, forced=truth.tokens)
        count = min(len(truth.logits), len(forced.logits))
        divergence.add(truth.logits[:count], forced.logits[:count], [prompt[-1], *truth.tokens][: count + 1])
        texts = setting.text(truth.tokens), setting.text(made.decode(own, prompt).tokens)
        lines = [words_of(text) for text in texts]
        apart = distance(*lines)
        words, wrong = words + len(lines[0]), wrong + apart
        if apart > most:
            most, worst = apart, (call.name, *texts)
    figures = WordFigures(len(calls), words, wrong, divergence.figures(), *worst)
    print(f"words: {wrong} of {words} differ in {len(calls)} windows; next tokens: {figures.steps}")
    return StageResult(Facts(figures).to_json())


def words_of(text: str) -> list[str]:
    """The words of a text, without case and punctuation."""
    return re.findall(r"\w+(?:'\w+)*", text.lower())


def distance(one: Sequence[str], other: Sequence[str]) -> int:
    """The fewest words to change, add or leave out that make one text the other (Levenshtein)."""
    row = np.arange(len(other) + 1)
    for number, word in enumerate(one, 1):
        changed = row[:-1] + np.array([word != each for each in other], np.int64)
        best = np.concatenate([[number], np.minimum(changed, row[1:] + 1)])
        row = np.minimum.accumulate(best - np.arange(len(best))) + np.arange(len(best))
    return int(row[-1])
