"""verify: climb the accuracy ladder of one bucket as far as onnxruntime's CPU goes, on samples calibration didn't see.

Each rung is compared with the one above and with the truth, in the region that is valid without padding:

    original       as it came, dynamic, unpadded: the truth
    padding        fixed shape, padded
    rewrite        rewritten for HTP
    quantization   the QDQ model; not there for a component that stays in float

Inputs: ``ingest``, ``samples``, ``shape``, ``rewrite``, and ``quantize`` unless it stays in float. Files: ``code``,
which holds the score function. Params: ``component``, ``bucket``, ``axes``, ``buckets``, ``padding``, ``part`` (of the
samples), ``score`` (the function's name, or null). Facts: ``samples`` (0: nothing was measured), ``shorter`` (how
many of them belong to smaller buckets), ``rungs`` (each against the one above), ``outputs`` (the last rung against the
truth), ``score``. A figure that is no number is null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from numpy.typing import NDArray

from pipeline.graph.accuracy import Outputs, compare, valid_outputs
from pipeline.graph.buckets import model_inputs, pad
from pipeline.graph.cpu import load_session
from pipeline.graph.cpu import run as run_model
from pipeline.graph.model_file import MODEL
from pipeline.model import Json, StageRequest, StageResult
from pipeline.readers.held_out import ScoredSample, held_out
from pipeline.readers.score import score

MODELS = {"padding": "shape", "rewrite": "rewrite", "quantization": "quantize"}
"""Each rung below the truth, and the input that holds its model."""


def run(request: StageRequest) -> StageResult:
    """Measure every rung, and the score of the first and the last.

    Raises:
        VerificationError: an output has another rank or size than the original's, or the score function fails.
    """
    inputs = model_inputs(request.inputs["ingest"].facts)
    given = held_out(request.inputs["samples"].folder, request.params, inputs)
    if not given.samples:
        print(f"not measured: bucket {request.params['bucket']} holds none of the samples")
        return StageResult({"samples": 0, "shorter": 0, "rungs": {}, "outputs": {}, "score": None})

    axes = cast("Mapping[str, int]", request.params["axes"])
    rules = cast("Mapping[str, float]", request.params["padding"])
    names = [sample.name for sample in given.samples]
    truth = _run_all(request.inputs["ingest"].folder, [sample.inputs for sample in given.samples])
    padded = [pad(sample.inputs, inputs, axes, rules) for sample in given.samples]
    rungs: dict[str, Json] = {}
    last: Sequence[Outputs] = truth
    for rung, role in MODELS.items():
        if role in request.inputs:
            outputs = [
                valid_outputs(output, expected, rung)
                for output, expected in zip(_run_all(request.inputs[role].folder, padded), truth, strict=True)
            ]
            rungs[rung] = compare(names, last, outputs)
            last = outputs
            print(f"{rung}: {rungs[rung]}")
    facts: dict[str, Json] = {
        "samples": len(names),
        "shorter": given.shorter,
        "rungs": rungs,
        "outputs": compare(names, truth, last),
        "score": _scores(request, given.samples, truth, last, "qdq" if "quantization" in rungs else "rewritten"),
    }
    return StageResult(facts)


def _run_all(folder: Path, feeds: Sequence[Mapping[str, NDArray[Any]]]) -> list[Outputs]:
    session = load_session(folder / MODEL)
    return [run_model(session, feed) for feed in feeds]


def _scores(
    request: StageRequest,
    samples: Sequence[ScoredSample],
    truth: Sequence[Outputs],
    last: Sequence[Outputs],
    model: str,
) -> dict[str, Json] | None:
    name = request.params["score"]
    if name is None:
        return None
    function = (request.files["code"], str(name))
    return {
        "name": name,
        "fp32": score(*function, samples, truth, truth),
        model: score(*function, samples, last, truth),
    }
