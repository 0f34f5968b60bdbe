"""correlate: measure how the inputs of each weight vary together, for rounding that looks at the data.

Inputs: ``ingest``, ``samples``, ``rewrite/<bucket>`` for every bucket. Output: ``correlations.json`` and
``correlations.bin``, see :mod:`pipeline.graph.quantization.correlations`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from pipeline.contracts import ingest
from pipeline.contracts.correlate import Facts, Params
from pipeline.contracts.language import LanguageFacts, Lengths
from pipeline.contracts.values import TensorSpec
from pipeline.graph.cpu import Arrays
from pipeline.graph.files.model_file import MODEL
from pipeline.graph.language.loop import Walk
from pipeline.graph.language.names import TOKENS
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
    ingested = ingest.Facts.from_json(request.inputs["ingest"].facts)
    calls = _spread(calibration_calls(request.inputs["samples"].folder, params.component, params.part))
    feeder: _Feeder
    if ingested.language is None:
        feeder = _Padded(ingested.inputs, params)
        placed = {bucket: own for bucket, own in place(calls, ingested.inputs, params.buckets).items() if own}
    else:
        feeder = _Spoken(ingested.language, params)
        placed = {feeder.bucket: calls}
    models = {bucket: WeightInputs(request.inputs[f"rewrite/{bucket}"].folder / MODEL) for bucket in placed}
    matrices = _matrices(models)
    writer = CorrelationWriter(request.out)
    for matrices_at_once in _passes(matrices):
        sums = {
            matrix.weights[0]: [(part, Sums(part.stop - part.start)) for part in split(matrix.inputs)]
            for matrix in matrices_at_once
        }
        for bucket, model in models.items():
            model.watch(sums.keys(), feeder.kept)
            for call in counted(placed[bucket], f"bucket {bucket}, sample", len(placed[bucket])):
                for feeds, count in feeder.runs(call, bucket, model):
                    for weight, rows in model.rows(feeds, list(sums)):
                        for part, summed in sums[weight]:
                            summed.add(rows[:count, part])
            model.close()
        for matrix in matrices_at_once:
            writer.add(matrix.weights, [summed.correlation() for _, summed in sums.pop(matrix.weights[0])])
    writer.finish()
    weights = sum(len(matrix.weights) for matrix in matrices)
    seconds = time.monotonic() - started
    print(f"{len(calls)} samples, {weights} weights with {len(matrices)} kinds of inputs, {seconds:.1f} s")
    samples = {bucket: len(placed.get(bucket, ())) for bucket in params.buckets}
    return StageResult(Facts(samples, weights, len(matrices)).to_json())


class _Feeder(Protocol):
    """Makes of a sample what goes into the model, and says how many rows of each weight's inputs are real."""

    kept: tuple[str, ...]

    def runs(self, call: StoredCall, bucket: str, model: WeightInputs) -> Iterator[tuple[Arrays, int | None]]:
        """The inputs of each run; None stands for all rows. The next is made of what `model` kept of the last."""


class _Padded:
    """A sample is one run."""

    kept: tuple[str, ...] = ()

    def __init__(self, inputs: Sequence[TensorSpec], params: Params) -> None:
        self._inputs, self._params = inputs, params

    def runs(self, call: StoredCall, bucket: str, model: WeightInputs) -> Iterator[tuple[Arrays, int | None]]:
        """See :class:`_Feeder`."""
        yield pad(call.load(), self._inputs, self._params.buckets[bucket], self._params.padding), None


class _Spoken:
    """A conversation is windows of prefill, each on the cache of those before; padding behind a text is not counted."""

    def __init__(self, language: LanguageFacts, params: Params) -> None:
        shapes = {name: Lengths(axes["sequence"], axes["past"]) for name, axes in params.buckets.items()}
        self.bucket = max(shapes, key=lambda name: shapes[name].sequence)
        self._language, self._lengths = language, shapes[self.bucket]
        self.kept = tuple(f"past_{kind}_{layer}_out" for layer in range(language.layers) for kind in ("key", "value"))

    def runs(self, call: StoredCall, bucket: str, model: WeightInputs) -> Iterator[tuple[Arrays, int | None]]:
        """See :class:`_Feeder`."""
        tokens = [int(token) for token in call.load()[TOKENS]]
        walk = Walk(self._language, self._lengths.past)
        for start in range(0, len(tokens), self._lengths.sequence):
            window = tokens[start : start + self._lengths.sequence]
            yield walk.feed(self._lengths, window), len(window)
            walk.went(len(window), model.made)


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
