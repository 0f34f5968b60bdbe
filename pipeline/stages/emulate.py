"""emulate: the lowest rung of the accuracy ladder, the context binary itself, on QNN's emulator of the HTP.

The emulator takes seconds for what the chip does in milliseconds, so as many held-out samples are run as the budget
allows, in the order that ``verify`` found: the worst on the CPU, those that touch edges of operators, those in between.

Inputs: ``ingest``, ``samples``, ``model`` (what was compiled: QDQ or float), ``verify``, and ``context``, unless its
binary is shared between buckets or targets, which the emulator doesn't take. Files: ``code``. Output: ``worst.json``,
the worst sample as a page can show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.contracts import context, ingest, quantize, verify
from pipeline.contracts.emulate import UNMEASURED, Facts, Params, SecondOpinion
from pipeline.contracts.language import LanguageFacts, Lengths
from pipeline.contracts.measures import Score
from pipeline.graph.accuracy.accuracy import Outputs, valid_outputs
from pipeline.graph.accuracy.choices import values_of
from pipeline.graph.accuracy.language import Divergence
from pipeline.graph.accuracy.measuring import measure
from pipeline.graph.accuracy.preview import worst_sample, write_preview
from pipeline.graph.cpu import load_session
from pipeline.graph.cpu import run as run_model
from pipeline.graph.files.model_file import MODEL, load_graph
from pipeline.graph.language.loop import Walk
from pipeline.graph.language.parts import cuts
from pipeline.graph.shapes.buckets import Arrays
from pipeline.graph.shapes.cost import macs
from pipeline.inputs.samples.held_out import ScoredSample, held_out
from pipeline.inputs.samples.score import score
from pipeline.inputs.samples.spoken import reference_logits, runner, texts_of
from pipeline.model import StageRequest, StageResult
from pipeline.progress import counted
from pipeline.qnn.child import compile_apart, run_apart
from pipeline.qnn.emulate import Budget, can_emulate
from pipeline.qnn.parts import compile_parts
from pipeline.qnn.second_opinion import second_opinion

MACS_PER_SECOND = 0.5e9
"""Multiply-accumulates that the emulator does in a second, by which a budget becomes a number of samples.

Measured with onnxruntime-qnn 2.7 on one core: MiniLM, 32 to 128 tokens, w8a16. Only the order of magnitude matters.
"""
_LEAST, _ESTIMATED = 2, 16
"""Samples that a busy machine runs, too, if the estimate allows them: as many as it says between these."""

_READ, _DECODED = 16, 3
"""Tokens of a conversation that the CPU reads before the emulator decodes, and that this decodes."""

_BYTES = 1 << 30
"""Inputs that are written for the emulator at a time."""


def run(request: StageRequest) -> StageResult:
    """Run the context on some samples and compare it with the rung above and with the original model.

    Raises:
        VerificationError: the context can't be run, an output has another size, or the score function fails.
    """
    params = Params.from_json(request.params)
    ingested = ingest.Facts.from_json(request.inputs["ingest"].facts)
    if ingested.language is not None:
        return _spoken(request, params, ingested.language)
    inputs = ingested.inputs
    given = held_out(request.inputs["samples"].folder, params, inputs)
    cpu = verify.Facts.from_json(request.inputs["verify"].facts)
    chosen = cpu.order[: _most(params, given.padded)]
    if not chosen:
        return StageResult(UNMEASURED.to_json())
    results, emulated, opinion = _emulated(params, request, [given.padded[place] for place in chosen])
    ran = sorted(zip(chosen, results, strict=False), key=lambda pair: pair[0])
    places, samples = [place for place, _ in ran], [given.samples[place] for place, _ in ran]
    originals, padded = ([feeds[place] for place in places] for feeds in (given.given, given.padded))
    truth = _on_cpu(request, "ingest", originals)
    above = _valid(_on_cpu(request, "model", padded), truth, params.last)
    outputs = _valid([result for _, result in ran], truth, "compile")
    names = [sample.name for sample in samples]
    wanted = [subject.chosen_from for subject in cpu.subjects.values() if subject.chosen_from]
    chosen_from = values_of(request.inputs["ingest"].folder / MODEL, wanted, originals)
    rung = measure(cpu.subjects, names, above, outputs, chosen_from=chosen_from)
    print(f"compile, {len(ran)} of {len(given.samples)} samples, {emulated}: {rung}")
    total = measure(cpu.subjects, names, truth, outputs, spans=cpu.spans, chosen_from=chosen_from)
    worst = worst_sample(total, names)
    words = (samples[worst].text, samples[worst].label)
    write_preview(request.out, names[worst], words, originals[worst], truth[worst], outputs[worst])
    facts = Facts(
        samples=len(ran),
        of=len(given.samples),
        emulated=emulated,
        rungs={"compile": rung},
        outputs=total,
        score=_score(params, request, samples, truth, outputs),
        subjects=cpu.subjects,
        second_opinion=opinion,
    )
    return StageResult(facts.to_json())


def _spoken(request: StageRequest, params: Params, language: LanguageFacts) -> StageResult:
    """A small twin of a language model's graph: one window, or a few tokens on the cache of those before them.

    Each run is on the cache that the emulator itself made, but for what the QDQ model read before the first of them.
    """
    texts = texts_of(request.inputs["samples"].folder, params)
    if not texts or params.twin is None:
        return StageResult(UNMEASURED.to_json())
    lengths = Lengths(params.twin["sequence"], params.twin["past"])
    edges = quantize.PartFacts.from_json(request.inputs["model"].facts).edges if params.last == "quantization" else {}
    tokens = texts[0][: lengths.total]
    decodes = lengths.sequence == 1
    most = _DECODED if decodes else 1
    if params.max_samples is not None:
        most = min(most, params.max_samples)
    read = min(_READ, len(tokens) - most) if decodes else 0
    walk = Walk(language, lengths.past, edges)
    if read:
        list(walk.run(runner(request.inputs["model"].folder), lengths, tokens[:read]))
    made: list[NDArray[np.float32]] = []
    target = params.target
    with TemporaryDirectory(dir=request.out.parent) as plain, TemporaryDirectory(dir=request.out.parent) as work:
        model = request.inputs["model"].folder / MODEL
        at = () if params.parts is None else cuts(load_graph(model), params.parts or None)
        if at:
            compiled = compile_parts({"plain": model}, at, target, Path(plain), stem="plain")["plain"]
        else:
            compiled = compile_apart(model, "plain", target, Path(plain))
        names = [output.name for output in compiled.outputs]
        for number in range(most):
            start = read + number * lengths.sequence
            window = tokens[start : start + lengths.sequence]
            folder = Path(work) / str(number)
            folder.mkdir()
            feed = walk.feed(lengths, window)
            (result,) = run_apart(Path(plain), compiled.context_model, target, [feed], folder)
            made.append(walk.took(window, dict(zip(names, result, strict=True))))
    run = read + sum(map(len, made))
    truth = reference_logits(request.inputs["ingest"].folder, language, tokens[:run])
    divergence = Divergence()
    divergence.add(truth[read:], np.concatenate(made), tokens[read : run + 1])
    figures = divergence.figures()
    name = "x".join(str(size) for size in params.twin.values())
    print(f"compile: {figures.tokens} tokens after {read}, on the twin {name}: {figures}")
    facts = Facts(
        samples=most,
        of=len(texts),
        emulated="plain compile",
        rungs={},
        outputs={},
        score=None,
        language={"compile": figures},
        twin=name,
    )
    return StageResult(facts.to_json())


def _most(params: Params, padded: Sequence[Arrays]) -> int:
    """How many samples to try: all, but for those that are not asked for or take too much room on disk."""
    size = max((sum(array.nbytes for array in feed.values()) for feed in padded), default=1)
    most = max(_ESTIMATED, _BYTES // max(size, 1))
    return most if params.max_samples is None else min(most, params.max_samples)


def _on_cpu(request: StageRequest, role: str, feeds: Sequence[Arrays]) -> list[Outputs]:
    session = load_session(request.inputs[role].folder / MODEL)
    return [run_model(session, feed) for feed in counted(feeds, "on the CPU: sample", len(feeds))]


def _valid(outputs: Sequence[Outputs], truth: Sequence[Outputs], rung: str) -> list[Outputs]:
    return [valid_outputs(output, expected, rung) for output, expected in zip(outputs, truth, strict=True)]


def _emulated(
    params: Params, request: StageRequest, padded: Sequence[Arrays]
) -> tuple[list[Outputs], Literal["context", "plain compile"], SecondOpinion]:
    """The outputs of the context, or of the same model compiled plainly where the context can't be emulated.

    What came of the first sample is held against what QNN gives without ONNX Runtime.
    """
    target, given = params.target, request.inputs.get("context")
    made: context.CompiledModel
    emulated: Literal["context", "plain compile"]
    # Beside the step's output, which they are no part of.
    with TemporaryDirectory(dir=request.out.parent) as plain, TemporaryDirectory(dir=request.out.parent) as work:
        compiled = context.PartFacts.from_json(given.facts) if given else None
        if given and compiled and can_emulate(given.folder, compiled.context_model):
            folder, made, emulated = given.folder, compiled, "context"
        else:
            folder, emulated = Path(plain), "plain compile"
            made = compile_apart(request.inputs["model"].folder / MODEL, "plain", target, folder)
        names = [output.name for output in made.outputs]
        seconds = macs(load_graph(request.inputs["model"].folder / MODEL)) / MACS_PER_SECOND
        estimate = min(_ESTIMATED, max(_LEAST, int(params.max_seconds / seconds) if seconds else _ESTIMATED))
        budget = Budget(params.max_seconds, estimate, reserved=1)
        results: list[Outputs] = [
            dict(zip(names, result, strict=True))
            for result in run_apart(folder, made.context_model, target, padded, Path(work), budget)
        ]
        opinion = second_opinion(folder, made.context_model, target, padded[0], results[0], Path(work))
    return results, emulated, opinion


def _score(
    params: Params,
    request: StageRequest,
    samples: Sequence[ScoredSample],
    truth: Sequence[Outputs],
    outputs: Sequence[Outputs],
) -> Score | None:
    if params.score is None:
        return None
    function = (request.files["code"], params.score)
    return Score(
        params.score,
        fp32=score(*function, samples, truth, truth),
        htp=score(*function, samples, outputs, truth),
    )
