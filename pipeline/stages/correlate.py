"""correlate: measure how the inputs of each weight vary together, for rounding that looks at the data.

Inputs: ``ingest``, ``samples``, ``rewrite/<bucket>`` for every bucket. Output: ``correlations.json`` and
``correlations.bin``, see :mod:`pipeline.graph.quantization.correlations`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from pipeline.contracts import ingest
from pipeline.contracts.correlate import Facts, Params
from pipeline.graph.files.model_file import MODEL
from pipeline.graph.quantization.correlations import ROWS_AT_ONCE, CorrelationWriter, Sums, split
from pipeline.graph.quantization.weight_inputs import Matrix, WeightInputs
from pipeline.graph.shapes.buckets import pad
from pipeline.inputs.samples.sample_set import StoredCall, calibration_calls, place
from pipeline.model import StageRequest, StageResult
from pipeline.progress import counted

_SAMPLES = 64
"""Samples that are run; of more, some that lie evenly spread."""
_SUM_BYTES = 300 << 20
"""What is added up at once; for a model that needs more, the samples are run again, so that memory stays bounded."""


def run(request: StageRequest) -> StageResult:
    """Run the samples through the float model of the smallest bucket that holds them.

    Raises:
        CalibrationError: no samples, or one that fits no bucket.
    """
    params = Params.from_json(request.params)
    started = time.monotonic()
    inputs = ingest.Facts.from_json(request.inputs["ingest"].facts).inputs
    calls = _spread(calibration_calls(request.inputs["samples"].folder, params.component, params.part))
    placed = {bucket: own for bucket, own in place(calls, inputs, params.buckets).items() if own}
    models = {bucket: WeightInputs(request.inputs[f"rewrite/{bucket}"].folder / MODEL) for bucket in placed}
    matrices = _matrices(models)
    writer = CorrelationWriter(request.out)
    for matrices_at_once in _passes(matrices):
        sums = {
            matrix.weights[0]: [(part, Sums(part.stop - part.start)) for part in split(matrix.inputs)]
            for matrix in matrices_at_once
        }
        for bucket, model in models.items():
            model.watch(sums.keys())
            for call in counted(placed[bucket], f"bucket {bucket}, sample", len(placed[bucket])):
                feeds = pad(call.load(), inputs, params.buckets[bucket], params.padding)
                for weight, rows in model.rows(feeds, list(sums)):
                    for part, summed in sums[weight]:
                        summed.add(rows[:, part])
            model.close()
        for matrix in matrices_at_once:
            writer.add(matrix.weights, [summed.correlation() for _, summed in sums.pop(matrix.weights[0])])
    writer.finish()
    weights = sum(len(matrix.weights) for matrix in matrices)
    seconds = time.monotonic() - started
    print(f"{len(calls)} samples, {weights} weights with {len(matrices)} kinds of inputs, {seconds:.1f} s")
    samples = {bucket: len(placed.get(bucket, ())) for bucket in params.buckets}
    return StageResult(Facts(samples, weights, len(matrices)).to_json())


def _spread(calls: Sequence[StoredCall]) -> list[StoredCall]:
    if len(calls) <= _SAMPLES:
        return list(calls)
    return [calls[number * len(calls) // _SAMPLES] for number in range(_SAMPLES)]


def _matrices(models: Mapping[str, WeightInputs]) -> list[Matrix]:
    """Every weight of any bucket once; which read the same is the same in all of them, or told by the first."""
    found: list[Matrix] = []
    known: set[str] = set()
    for model in models.values():
        for matrix in model.matrices():
            new = tuple(weight for weight in matrix.weights if weight not in known)
            if new:
                found.append(Matrix(new, matrix.inputs))
                known.update(new)
    return found


def _passes(matrices: Sequence[Matrix]) -> Iterator[list[Matrix]]:
    """The matrices in groups whose sums take no more than :data:`_SUM_BYTES`."""
    group: list[Matrix] = []
    size = 0
    for matrix in matrices:
        parts = [part.stop - part.start for part in split(matrix.inputs)]
        needed = sum(4 * part * (part + ROWS_AT_ONCE) for part in parts)
        if group and size + needed > _SUM_BYTES:
            yield group
            group, size = [], 0
        group.append(matrix)
        size += needed
    if group:
        yield group
