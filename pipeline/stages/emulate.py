"""emulate: the lowest rung of the accuracy ladder, the context binary itself, on QNN's emulator of the HTP.

The emulator takes seconds for what the chip does in milliseconds, so only as many held-out samples are run as the
budget allows: the one that is worst on the CPU, and others evenly spread over the set.

Inputs: ``ingest``, ``samples``, ``model`` (what was compiled: QDQ or float), ``verify``, and ``context``, unless its
binary is shared between buckets or targets, which the emulator doesn't take. Files: ``code``.
Params: those of verify, ``soc_model``, ``htp_arch``, ``vtcm_mb``, ``max_samples``, ``max_seconds``, ``last`` (the
rung that ``model`` is). Facts: ``samples`` (how many were run), ``of`` (how many there are), ``emulated``
(``context``, or ``plain compile`` of the same model where there is none to emulate), ``rungs`` with ``compile`` against
the rung above, ``outputs`` against the original, ``score``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from numpy.typing import NDArray

from pipeline.graph.accuracy import Outputs, compare, valid_outputs
from pipeline.graph.buckets import model_inputs, pad
from pipeline.graph.cost import macs
from pipeline.graph.cpu import load_session
from pipeline.graph.cpu import run as run_model
from pipeline.graph.model_file import MODEL, load_graph
from pipeline.model import Json, StageRequest, StageResult
from pipeline.qnn.child import compile_apart, run_apart
from pipeline.qnn.emulate import can_emulate
from pipeline.qnn.target import HtpTarget
from pipeline.readers.held_out import ScoredSample, held_out
from pipeline.readers.score import score

MACS_PER_SECOND = 0.5e9
"""Multiply-accumulates that the emulator does in a second, by which a budget becomes a number of samples.

Measured with onnxruntime-qnn 2.7 on one core: MiniLM, 32 to 128 tokens, w8a16. Only the order of magnitude matters.
"""
_LEAST = 2
"""Samples that are run whatever they take: one may be an exception."""


def run(request: StageRequest) -> StageResult:
    """Run the context on some samples and compare it with the rung above and with the original model.

    Raises:
        VerificationError: the context can't be run, an output has another size, or the score function fails.
    """
    inputs = model_inputs(request.inputs["ingest"].facts)
    given = held_out(request.inputs["samples"].folder, request.params, inputs)
    samples = _chosen(request, given.samples)
    if not samples:
        return StageResult({"samples": 0, "of": 0, "rungs": {}, "outputs": {}, "score": None})
    axes = cast("Mapping[str, int]", request.params["axes"])
    rules = cast("Mapping[str, float]", request.params["padding"])
    padded = [pad(sample.inputs, inputs, axes, rules) for sample in samples]
    truth = _on_cpu(request, "ingest", [sample.inputs for sample in samples])
    above = _valid(_on_cpu(request, "model", padded), truth, str(request.params["last"]))
    results, emulated = _emulated(request, padded)
    outputs = _valid(results, truth, "compile")
    names = [sample.name for sample in samples]
    rung = compare(names, above, outputs)
    print(f"compile, {len(samples)} of {len(given.samples)} samples, {emulated}: {rung}")
    facts: dict[str, Json] = {
        "samples": len(samples),
        "of": len(given.samples),
        "emulated": emulated,
        "rungs": {"compile": rung},
        "outputs": compare(names, truth, outputs),
        "score": _scores(request, samples, truth, outputs),
    }
    return StageResult(facts)


def _chosen(request: StageRequest, samples: Sequence[ScoredSample]) -> list[ScoredSample]:
    """As many as the budget allows: the worst on the CPU, and others evenly spread, in the order of the set."""
    seconds = macs(load_graph(request.inputs["model"].folder / MODEL)) / MACS_PER_SECOND
    allowed, limit = request.params["max_seconds"], request.params["max_samples"]
    assert isinstance(allowed, int)
    assert isinstance(limit, int)
    count = min(limit, len(samples), max(_LEAST, int(allowed / seconds) if seconds else len(samples)))
    worst = _worst(request.inputs["verify"].facts)
    names = [sample.name for sample in samples]
    first = names.index(worst) if worst in names else 0
    spread = [first, *(number * len(samples) // count for number in range(count))]
    return [samples[number] for number in sorted(list(dict.fromkeys(spread))[:count])]


def _worst(facts: Mapping[str, Json]) -> str:
    """The sample that was furthest off in any output on the last rung before this one."""
    outputs = cast("Mapping[str, Mapping[str, Any]]", facts["outputs"])
    found = [(output["worst_db"], output["worst_sample"]) for output in outputs.values()]
    return str(min(found, key=lambda entry: -1000.0 if entry[0] is None else entry[0])[1]) if found else ""


def _on_cpu(request: StageRequest, role: str, feeds: Sequence[Mapping[str, NDArray[Any]]]) -> list[Outputs]:
    session = load_session(request.inputs[role].folder / MODEL)
    return [run_model(session, feed) for feed in feeds]


def _valid(outputs: Sequence[Outputs], truth: Sequence[Outputs], rung: str) -> list[Outputs]:
    return [valid_outputs(output, expected, rung) for output, expected in zip(outputs, truth, strict=True)]


def _emulated(request: StageRequest, padded: Sequence[Mapping[str, NDArray[Any]]]) -> tuple[list[Outputs], str]:
    """The outputs of the context, or of the same model compiled plainly where the context can't be emulated."""
    target, context = HtpTarget.from_json(request.params), request.inputs.get("context")
    # Beside the step's output, which they are no part of.
    with TemporaryDirectory(dir=request.out.parent) as plain, TemporaryDirectory(dir=request.out.parent) as work:
        if context is not None and can_emulate(context.folder, str(context.facts["context_model"])):
            folder, facts, emulated = context.folder, context.facts, "context"
        else:
            folder, emulated = Path(plain), "plain compile"
            facts = compile_apart(request.inputs["model"].folder / MODEL, "plain", target, folder)
        names = [str(output["name"]) for output in cast("Sequence[Mapping[str, Any]]", facts["outputs"])]
        results = run_apart(folder, str(facts["context_model"]), target, padded, Path(work))
    return [dict(zip(names, result, strict=True)) for result in results], emulated


def _scores(
    request: StageRequest, samples: Sequence[ScoredSample], truth: Sequence[Outputs], outputs: Sequence[Outputs]
) -> dict[str, Json] | None:
    name = request.params["score"]
    if name is None:
        return None
    function = (request.files["code"], str(name))
    return {
        "name": name,
        "fp32": score(*function, samples, truth, truth),
        "htp": score(*function, samples, outputs, truth),
    }
