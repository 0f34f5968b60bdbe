"""verify: climb the accuracy ladder of one bucket as far as onnxruntime's CPU goes, on held-out samples.

Every rung runs the samples that the bucket is the smallest for, and is compared with the rung above in the region that
is valid without padding:

    original       as it came, dynamic, unpadded: the truth
    padding        fixed shape, padded
    rewrite        rewritten for HTP
    quantization   the QDQ model; not there for a component that stays in float

Inputs: ``ingest``, ``samples``, ``shape``, ``rewrite``, and ``quantize`` unless it stays in float. Files: ``code``,
which holds the score function, ``score(samples, outputs) -> float``. Params: ``component``, ``bucket``, ``axes``,
``buckets``, ``padding``, ``score`` (the function's name, or null). Facts: ``samples`` (0: nothing was measured),
``outputs`` (the last rung against the truth), ``rungs`` (each against the one above), ``score``. A figure that is no
number is null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from numpy.typing import NDArray

from pipeline.errors import CalibrationError, VerificationError
from pipeline.graph.accuracy import Accuracy, valid_region
from pipeline.graph.buckets import axis_lengths, model_inputs, pad, smallest_bucket
from pipeline.graph.cpu import load_session
from pipeline.graph.cpu import run as run_model
from pipeline.graph.model_file import MODEL
from pipeline.model import Json, StageRequest, StageResult
from pipeline.readers.sample_set import stored_calls
from pipeline.readers.user_code import UserFunction

Outputs = Mapping[str, NDArray[Any]]

RUNGS = {"padding": "shape", "rewrite": "rewrite", "quantization": "quantize"}
"""Each rung below the truth, and the input that holds its model."""


@dataclass(frozen=True)
class ScoredSample:
    """What a score function sees of a sample: its text and label where the reader has them, its unpadded inputs."""

    text: str | None
    label: str | None
    inputs: Mapping[str, NDArray[Any]]


def run(request: StageRequest) -> StageResult:
    """Measure every rung, and the score of the first and the last.

    Raises:
        VerificationError: an output has another rank or size than the original's, or the score function fails.
    """
    samples = _samples(request)
    rungs = {rung: role for rung, role in RUNGS.items() if role in request.inputs}
    if not samples:
        print(f"not measured: bucket {request.params['bucket']} is the smallest for none of the samples")
        return StageResult({"samples": 0, "outputs": {}, "rungs": {}, "score": None})

    inputs = model_inputs(request.inputs["ingest"].facts)
    axes = cast("Mapping[str, int]", request.params["axes"])
    rules = cast("Mapping[str, float]", request.params["padding"])
    truth = _run_all(request.inputs["ingest"].folder, [sample.inputs for sample in samples])
    padded = [pad(sample.inputs, inputs, axes, rules) for sample in samples]
    measured: dict[str, Json] = {}
    last = truth
    for rung, role in rungs.items():
        outputs = _cropped(_run_all(request.inputs[role].folder, padded), truth, rung)
        measured[rung] = _compare(last, outputs)
        last = outputs
        print(f"{rung}: {measured[rung]}")
    score = _score(request, samples, {"fp32": truth, "qdq" if "quantization" in rungs else "rewritten": last})
    return StageResult({"samples": len(samples), "outputs": _compare(truth, last), "rungs": measured, "score": score})


def _samples(request: StageRequest) -> list[ScoredSample]:
    """The samples that this bucket is the smallest for."""
    inputs = model_inputs(request.inputs["ingest"].facts)
    buckets = cast("Mapping[str, Mapping[str, int]]", request.params["buckets"])
    found = []
    for call in stored_calls(request.inputs["samples"].folder, str(request.params["component"])):
        arrays = call.load()
        if smallest_bucket(axis_lengths(arrays, inputs), buckets) == request.params["bucket"]:
            found.append(ScoredSample(call.sample.text, call.sample.label, arrays))
    return found


def _run_all(folder: Path, feeds: Sequence[Mapping[str, NDArray[Any]]]) -> list[Outputs]:
    session = load_session(folder / MODEL)
    return [run_model(session, feed) for feed in feeds]


def _cropped(outputs: Sequence[Outputs], truth: Sequence[Outputs], rung: str) -> list[Outputs]:
    """The valid region of every output: as much of it as the original gives for the unpadded sample."""
    cropped: list[Outputs] = []
    for padded, expected in zip(outputs, truth, strict=True):
        for name, array in expected.items():
            have = padded[name].shape
            if len(have) != array.ndim or any(need > size for need, size in zip(array.shape, have, strict=True)):
                raise VerificationError(
                    f"output {name!r} is {list(have)} where the original model gives {list(array.shape)}",
                    where=f"rung {rung!r}",
                    why="a dim of the output doesn't follow the bucket",
                    remedy="look at what the shape step's log says about this output, or report it with the model",
                )
        cropped.append({name: valid_region(padded[name], array.shape) for name, array in expected.items()})
    return cropped


def _compare(truth: Sequence[Outputs], tested: Sequence[Outputs]) -> dict[str, Json]:
    """The accuracy of each output over all samples."""
    accuracies = {name: Accuracy() for name in truth[0]}
    for expected, actual in zip(truth, tested, strict=True):
        for name, accuracy in accuracies.items():
            accuracy.add(expected[name], actual[name])
    return {name: accuracy.facts() for name, accuracy in accuracies.items()}


def _score(
    request: StageRequest, samples: Sequence[ScoredSample], outputs: Mapping[str, Sequence[Outputs]]
) -> dict[str, Json] | None:
    """The user's score of each of several models' outputs, under the name of its function."""
    name = request.params["score"]
    if name is None:
        return None
    score: dict[str, Json] = {"name": name}
    try:
        function = UserFunction(request.files["code"], str(name))
        for model, given in outputs.items():
            with function.explained(f"score function {name}() failed"):
                value = float(function.call(samples, given))
                if not math.isfinite(value):
                    raise ValueError(f"it returned {value}")
            score[model] = round(value, 6)
    except CalibrationError as error:
        raise VerificationError(error.what, where=error.where, why=error.why, remedy=error.remedy) from error
    return score
