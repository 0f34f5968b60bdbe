"""emulate: measure the lowest rung of the accuracy ladder, the context binary itself, on QNN's emulator of the HTP.

The emulator takes seconds for what the chip does in milliseconds. So the bucket's share of the budget decides how many
held-out samples are run. They come in the order of ``verify``: the worst on the CPU, those that touch edges of
operators, the others. Their outputs on the CPU are those that ``verify`` kept.

Inputs: ``ingest``, ``samples``, ``model`` (what was compiled: QDQ or float), ``verify``, ``bucket/<bucket>`` (what
``verify`` says of each bucket), and ``context``, unless its binary is shared between buckets or targets, which the
emulator doesn't take. Files: ``code``. Output: ``worst.json``, the worst sample as a page can show it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.contracts import ingest, quantize, verify
from pipeline.contracts.context import CompiledModel, PartFacts
from pipeline.contracts.emulate import UNMEASURED, Facts, Params
from pipeline.contracts.language import LanguageFacts, Lengths
from pipeline.contracts.measures import Measured, Score
from pipeline.contracts.values import TensorSpec
from pipeline.graph.accuracy.emulation.emulation_budget import is_doubtful, most_in_doubt, quiet_count, shares
from pipeline.graph.accuracy.emulation.emulation_cost import run_s
from pipeline.graph.accuracy.figures.accuracy import Outputs, valid_outputs
from pipeline.graph.accuracy.figures.choices import values_of
from pipeline.graph.accuracy.figures.measuring import measure
from pipeline.graph.accuracy.figures.next_tokens import Divergence
from pipeline.graph.accuracy.figures.preview import worst_sample, write_preview
from pipeline.graph.accuracy.figures.subjects import quiet_subjects
from pipeline.graph.cpu import load_session
from pipeline.graph.cpu import run as run_model
from pipeline.graph.files.model_file import MODEL, load_graph
from pipeline.graph.language.host_table import rows_of
from pipeline.graph.language.loop import Walk
from pipeline.graph.language.parts import cuts
from pipeline.graph.shapes.buckets import Arrays
from pipeline.inputs.samples.emulated_tokens import decoded_count, to_decode, to_prefill
from pipeline.inputs.samples.held_out import HeldOut, ScoredSample, fed, held_out
from pipeline.inputs.samples.quiet import quieter
from pipeline.inputs.samples.references import Reference, kept
from pipeline.inputs.samples.score import score
from pipeline.inputs.samples.spoken import reference_logits, runner, texts_of
from pipeline.model import StageRequest, StageResult
from pipeline.progress import counted
from pipeline.qnn.child import compile_apart, run_apart
from pipeline.qnn.compiling.parts import compile_parts
from pipeline.qnn.running.rounds import emulation

_FIT = 16
"""How many samples are written for the emulator at a time, even if they are large."""

_COMPILED = ("context", "alone")
"""Inputs that may have a language model's graph with a binary of its own."""
_TWIN_RUNS = 3
"""How many runs of a twin its emulation costs, with its compile. SmolLM2's prefill: 98 s of CPU, 42 of them the run,
and 70 for what ships."""

_BYTES = 1 << 30
"""How many bytes of inputs are written for the emulator at a time."""


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
    planned, in_doubt = _most(params, request, given.padded)
    if not planned:
        return StageResult(UNMEASURED.to_json())
    model, compiled = request.inputs["model"].folder / MODEL, request.inputs.get("context")
    with emulation(model, compiled, params.target, request.out.parent) as emulated:
        first = cpu.order[:planned]
        results, opinion = emulated.run_twice([given.padded[place] for place in first], cpu.sample_s)
        ran = dict(zip(first, results, strict=False))
        measured = _measured(params, request, cpu, given, ran)
        quantized = cpu.rungs.get("quantization", {})
        if len(ran) == planned < in_doubt and is_doubtful(measured.rung, quantized, planned, len(given.samples)):
            print(f"compile, {planned} samples: {measured.rung}; more are run, as that is less than is usual")
            more = cpu.order[planned:in_doubt]
            results = emulated.run([given.padded[place] for place in more], cpu.sample_s)
            measured = _measured(params, request, cpu, given, ran | dict(zip(more, results, strict=False)))
        quieted = _quieted(params, cpu, given, inputs)
        quiet_outputs = emulated.run(quieted.padded, cpu.sample_s) if quieted.samples else []
    quiet = _quiet(request, cpu, quieted, quiet_outputs)
    names, samples = measured.names, measured.samples
    print(f"compile, {len(names)} of {len(given.samples)} samples, {emulated.kind}: {measured.rung}")
    worst = worst_sample(measured.total, names)
    words = (samples[worst].text, samples[worst].label)
    original, truth, made = given.given[measured.places[worst]], measured.truth[worst], measured.outputs[worst]
    write_preview(request.out, names[worst], words, original, truth, made)
    facts = Facts(
        samples=len(names),
        of=len(given.samples),
        emulated=emulated.kind,
        rungs={"compile": measured.rung},
        quiet=quiet,
        quiet_samples=len(quiet_outputs),
        outputs=measured.total,
        score=_score(params, request, samples, measured.truth, measured.outputs),
        subjects=cpu.subjects,
        second_opinion=opinion,
    )
    return StageResult(facts.to_json())


@dataclass(frozen=True)
class _Measurement:
    """The samples that were run, in the order of the set, and their figures."""

    places: Sequence[int]
    samples: Sequence[ScoredSample]
    truth: Sequence[Outputs]
    outputs: Sequence[Outputs]
    rung: Measured
    total: Measured

    @property
    def names(self) -> list[str]:
        """The samples' names."""
        return [sample.name for sample in self.samples]


def _measured(
    params: Params, request: StageRequest, cpu: verify.Facts, given: HeldOut, ran: Mapping[int, Outputs]
) -> _Measurement:
    """The figures of the samples that `ran`, by their places."""
    places = sorted(ran)
    samples = [given.samples[place] for place in places]
    names = [sample.name for sample in samples]
    known = _references(request, params, cpu, places, given)
    truth, above = [each.truth for each in known], [each.above for each in known]
    chosen_from = [each.chosen_from for each in known]
    outputs = _valid([ran[place] for place in places], truth, "compile")
    rung = measure(cpu.subjects, names, above, outputs, chosen_from=chosen_from)
    total = measure(cpu.subjects, names, truth, outputs, spans=cpu.spans, chosen_from=chosen_from)
    return _Measurement(places, samples, truth, outputs, rung, total)


def _quieted(params: Params, cpu: verify.Facts, given: HeldOut, inputs: Sequence[TensorSpec]) -> HeldOut:
    """The quieter samples to run, the worst on the CPU first."""
    count = quiet_count(len(cpu.quiet_order), cpu.sample_s, params.max_seconds)
    if params.max_samples is not None:
        count = min(count, params.max_samples)
    made = quieter(given.samples, cpu.heard) if count else []
    return fed([made[place] for place in cpu.quiet_order[:count]], params, inputs)


def _quiet(request: StageRequest, cpu: verify.Facts, given: HeldOut, ran: Sequence[Outputs]) -> Measured:
    """The figures of quieter samples against the original: of as many of the first as `ran`."""
    if not ran:
        return {}
    truth = _on_cpu(request, "ingest", given.given[: len(ran)])
    names = [sample.name for sample in given.samples[: len(ran)]]
    figures = measure(quiet_subjects(cpu.subjects), names, truth, _valid(ran, truth, "compile"))
    print(f"compile, {len(names)} quieter samples: {figures}")
    return figures


def _spoken(request: StageRequest, params: Params, language: LanguageFacts) -> StageResult:
    """Measure a language model's graph, or a small twin: on the first tokens of an answer, or the window before one.

    Each run takes the cache of the emulator's run before; the first takes that of the QDQ model.
    """
    texts = texts_of(request.inputs["samples"].folder, params)
    if not texts or params.twin is None:
        return StageResult(UNMEASURED.to_json())
    role = _emulated(request)
    axes = params.axes if role == "model" else params.twin
    lengths, twin = Lengths(axes["sequence"], axes["past"]), Lengths(params.twin["sequence"], params.twin["past"])
    edges = quantize.PartFacts.from_json(request.inputs[role].facts).edges if params.last == "quantization" else {}
    decodes = lengths.sequence == 1
    graph = load_graph(request.inputs[role].folder / MODEL)
    most = decoded_count(run_s(graph), params.max_seconds) if decodes else 1
    if params.max_samples is not None:
        most = min(most, params.max_samples)
    if decodes:
        tokens, read, most = to_decode(texts, lengths, most)
    else:
        tokens, read = to_prefill(texts, twin)
    walk = Walk(language, lengths.past, edges)
    if read:
        list(walk.run(runner(request.inputs[role].folder, language), lengths, tokens[:read]))
    made: list[NDArray[np.float32]] = []
    target, rows = params.target, rows_of(request.inputs[role].folder, language)
    with TemporaryDirectory(dir=request.out.parent) as plain, TemporaryDirectory(dir=request.out.parent) as work:
        context, compiled = _compiled(request, params, role, graph, Path(plain))
        names = [output.name for output in compiled.outputs]
        for number in range(most):
            start = read + number * twin.sequence
            window = tokens[start : start + twin.sequence]  # a larger graph has padding behind them
            folder = Path(work) / str(number)
            folder.mkdir()
            feed = rows(walk.feed(lengths, window))
            (result,) = run_apart(context, compiled.context_model, target, [feed], folder)
            made.append(walk.took(window, dict(zip(names, result, strict=True))))
    run = read + sum(map(len, made))
    (truth,) = reference_logits(request.inputs["ingest"].folder, language, [tokens[:run]])
    divergence = Divergence()
    divergence.add(truth[read:], np.concatenate(made), tokens[read : run + 1])
    figures = divergence.figures()
    name = "x".join(str(size) for size in axes.values())
    print(f"compile: {figures.tokens} tokens after {read}, on {name}: {figures}")
    facts = Facts(
        samples=most,
        of=len(texts),
        emulated="context" if role == "model" and "context" in request.inputs else "plain compile",
        rungs={},
        outputs={},
        score=None,
        language={"compile": figures},
        twin=name,
    )
    return StageResult(facts.to_json())


def _emulated(request: StageRequest) -> str:
    """The role of the language model's graph to emulate: the one that ships, unless a twin costs less.

    A twin has to be compiled first, which takes twice as long as a run of it.
    """
    if "twin" not in request.inputs:
        return "model"
    ships, twin = (run_s(load_graph(request.inputs[role].folder / MODEL)) for role in ("model", "twin"))
    compiled = any(role in request.inputs for role in _COMPILED)
    return "model" if compiled and ships <= _TWIN_RUNS * twin else "twin"


def _compiled(
    request: StageRequest, params: Params, role: str, graph: ModelProto, plain: Path
) -> tuple[Path, CompiledModel]:
    """A language model's context that the emulator takes: an input, or one that is compiled now into `plain`."""
    for name in _COMPILED if role == "model" else ():
        if given := request.inputs.get(name):
            return given.folder, PartFacts.from_json(given.facts)
    model = request.inputs[role].folder / MODEL
    if at := () if params.parts is None else cuts(graph, params.parts or None):
        return plain, compile_parts({"plain": model}, at, params.target, plain, stem="plain")["plain"]
    return plain, compile_apart(model, "plain", params.target, plain)


def _most(params: Params, request: StageRequest, padded: Sequence[Arrays]) -> tuple[int, int]:
    """How many samples to run at first, by the bucket's share of the budget, and in all if the first raise doubt.

    Neither is more than the config asks for, or than fit on disk.
    """
    buckets = {
        role.partition("/")[2]: verify.Basis.from_json(given.facts)
        for role, given in request.inputs.items()
        if role.startswith("bucket/")
    }
    size = max((sum(array.nbytes for array in feed.values()) for feed in padded), default=1)
    fit = max(_FIT, _BYTES // max(size, 1))
    most = fit if params.max_samples is None else min(fit, params.max_samples)
    share = shares(buckets, params.max_seconds, in_float=params.last == "rewrite")[params.bucket]
    return min(most, share), min(most, max(share, most_in_doubt(buckets[params.bucket], params.max_seconds)))


def _references(
    request: StageRequest, params: Params, cpu: verify.Facts, places: Sequence[int], given: HeldOut
) -> list[Reference]:
    """The outputs of these samples on the CPU, as ``verify`` kept them; those it did not keep are computed."""
    wanted = [subject.chosen_from for subject in cpu.subjects.values() if subject.chosen_from]
    outputs = [spec.name for spec in ingest.Facts.from_json(request.inputs["ingest"].facts).outputs]
    known = kept(request.inputs["verify"].folder, places, outputs, wanted)
    if len(known) == len(places):
        return list(known.values())
    left = [place for place in places if place not in known]
    originals = [given.given[place] for place in left]
    truth = _on_cpu(request, "ingest", originals)
    above = _valid(_on_cpu(request, "model", [given.padded[place] for place in left]), truth, params.last)
    values = values_of(request.inputs["ingest"].folder / MODEL, wanted, originals)
    computed = {place: Reference(*each) for place, *each in zip(left, truth, above, values, strict=True)}
    return [{**known, **computed}[place] for place in places]


def _on_cpu(request: StageRequest, role: str, feeds: Sequence[Arrays]) -> list[Outputs]:
    session = load_session(request.inputs[role].folder / MODEL)
    return [run_model(session, feed) for feed in counted(feeds, "on the CPU: sample", len(feeds))]


def _valid(outputs: Sequence[Outputs], truth: Sequence[Outputs], rung: str) -> list[Outputs]:
    return [valid_outputs(output, expected, rung) for output, expected in zip(outputs, truth, strict=True)]


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
