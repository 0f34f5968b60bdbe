"""correlate: measure how the inputs of each weight vary together, for rounding that looks at the data.

Inputs: ``ingest``, ``samples``, ``rewrite/<bucket>`` for every bucket. Output: ``correlations.json`` and
``correlations.bin``, see :mod:`pipeline.graph.quantization.weights.correlations`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.contracts import ingest
from pipeline.contracts.correlate import Facts, Params
from pipeline.contracts.language import LanguageFacts, Lengths
from pipeline.contracts.values import TensorSpec
from pipeline.graph.cpu import Arrays
from pipeline.graph.files.model_file import MODEL
from pipeline.graph.language.loop import Walk
from pipeline.graph.language.names import TOKENS
from pipeline.graph.quantization.weights.correlations import CorrelationWriter, Sums, split, sum_bytes
from pipeline.graph.quantization.weights.valid_rows import Shapes
from pipeline.graph.quantization.weights.weight_inputs import Matrix, WeightInputs
from pipeline.graph.shapes.buckets import pad, refilled
from pipeline.inputs.samples.sample_set import StoredCall, calibration_calls, place
from pipeline.model import StageRequest, StageResult
from pipeline.progress import counted, within

_SAMPLES = 64
"""How many samples are run, evenly spread over the set if it has more."""
_FEWEST, _PRODUCTS = 8, 4e11
"""At least this many samples are run; more only while all together take at most this many multiply-accumulates, half a
minute on one core in float64."""
_SUM_BYTES = 340 << 20
_VALUE_BYTES = 300 << 20
"""The most bytes of sums, and of values of a run, that are in memory at once. For a model that needs more, the samples
are run several times."""


def run(request: StageRequest) -> StageResult:
    """Run the samples through the float model of the smallest bucket that holds them.

    Raises:
        CalibrationError: no samples, or one that fits no bucket.
    """
    params = Params.from_json(request.params)
    started = time.monotonic()
    ingested = ingest.Facts.from_json(request.inputs["ingest"].facts)
    feeder = _Padded(ingested.inputs, params) if ingested.language is None else _Spoken(ingested.language, params)
    calls = calibration_calls(request.inputs["samples"].folder, params.component, params.part)
    needed = [*feeder.placed(calls)]
    models = {bucket: WeightInputs(request.inputs[f"rewrite/{bucket}"].folder / MODEL) for bucket in needed}
    calls = _spread(calls, int(_PRODUCTS / max(model.products for model in models.values())))
    placed = feeder.placed(calls)
    matrices = _matrices(models)
    writer = CorrelationWriter(request.out)
    done = 0
    for matrices_at_once in _passes(matrices):
        part = f"inputs of weights {done + 1} to {done + len(matrices_at_once)} of {len(matrices)}"
        done += len(matrices_at_once)
        sums = {
            matrix.weights[0]: [(part, Sums(part.stop - part.start)) for part in split(matrix.inputs)]
            for matrix in matrices_at_once
        }
        with within(part if len(matrices_at_once) < len(matrices) else ""):
            for bucket, own in placed.items():
                model = models[bucket]
                model.watch(sums.keys())
                for call in counted(own, f"bucket {bucket}, sample", len(own)):
                    for given in feeder.runs(call, bucket, model):
                        for weight, rows in model.rows(given.feeds, list(sums), given.refilled, given.shapes):
                            for columns, summed in sums[weight]:
                                summed.add(rows[: given.count, columns])
                model.close()
            for matrix in counted(matrices_at_once, "adding up", len(matrices_at_once)):
                writer.add(matrix.weights, [summed.correlation() for _, summed in sums.pop(matrix.weights[0])])
    writer.finish()
    weights = sum(len(matrix.weights) for matrix in matrices)
    doubtful = set[str]().union(*(model.doubtful for model in models.values()))
    seconds = time.monotonic() - started
    print(f"{len(calls)} samples, {weights} weights with {len(matrices)} kinds of inputs, {seconds:.1f} s")
    if doubtful:
        print(
            f"{len(doubtful)} weights are left out, as float64 is not to be had for what they read: {min(doubtful)!r}"
        )
    samples = {bucket: len(placed.get(bucket, ())) for bucket in params.buckets}
    return StageResult(Facts(samples, weights, len(matrices), len(doubtful)).to_json())


@dataclass(frozen=True)
class _Run:
    """What goes into the model. `refilled` and `shapes` as :meth:`WeightInputs.rows` takes them; of the rows of each
    weight's inputs the first `count` are looked at, None for all.
    """

    feeds: Arrays
    refilled: Arrays
    shapes: Shapes = ()
    count: int | None = None


class _Padded:
    """Samples of which each is one run, in the smallest bucket that holds it."""

    def __init__(self, inputs: Sequence[TensorSpec], params: Params) -> None:
        self._inputs, self._params = inputs, params

    def placed(self, calls: Sequence[StoredCall]) -> dict[str, list[StoredCall]]:
        """The samples by bucket."""
        return {bucket: own for bucket, own in place(calls, self._inputs, self._params.buckets).items() if own}

    def runs(self, call: StoredCall, bucket: str, model: WeightInputs) -> Iterator[_Run]:
        """The one run of a sample."""
        arrays = call.load()
        feeds = pad(arrays, self._inputs, self._params.buckets[bucket], self._params.padding)
        yield _Run(feeds, refilled(arrays, feeds), tuple(array.shape for array in arrays.values()))


class _Spoken:
    """Conversations, in windows of prefill with the cache of those before. Padding behind a text is not counted."""

    def __init__(self, language: LanguageFacts, params: Params) -> None:
        shapes = {name: Lengths(axes["sequence"], axes["past"]) for name, axes in params.buckets.items()}
        self._bucket = max(shapes, key=lambda name: (shapes[name].sequence, shapes[name].past))
        self._language, self._lengths = language, shapes[self._bucket]

    def placed(self, calls: Sequence[StoredCall]) -> dict[str, list[StoredCall]]:
        """All conversations, in the largest bucket: other buckets would read the same tokens."""
        return {self._bucket: [*calls]}

    def runs(self, call: StoredCall, bucket: str, model: WeightInputs) -> Iterator[_Run]:
        """The windows of a conversation. Each takes the cache that `model` returned for the one before."""
        tokens = [int(token) for token in call.load()[TOKENS]]
        walk = Walk(self._language, self._lengths.past)
        for start in range(0, len(tokens), self._lengths.sequence):
            window = tokens[start : start + self._lengths.sequence]
            yield _Run(walk.feed(self._lengths, window), {}, count=len(window))
            walk.went(len(window), model.made)


def _spread(calls: Sequence[StoredCall], affordable: int) -> list[StoredCall]:
    most = min(_SAMPLES, max(_FEWEST, affordable))
    if len(calls) <= most:
        return list(calls)
    return [calls[number * len(calls) // most] for number in range(most)]


def _matrices(models: Mapping[str, WeightInputs]) -> list[Matrix]:
    """Every weight of any bucket once. The first bucket that has a weight decides which weights read the same input."""
    found: list[Matrix] = []
    known = set[str]().union(*(model.doubtful for model in models.values()))
    for model in models.values():
        for matrix in model.matrices():
            new = tuple(weight for weight in matrix.weights if weight not in known)
            if new:
                found.append(Matrix(new, matrix.inputs, matrix.rows))
                known.update(new)
    return found


def _passes(matrices: Sequence[Matrix]) -> Iterator[list[Matrix]]:
    """The matrices in groups that need no more memory than :data:`_SUM_BYTES` and :data:`_VALUE_BYTES`."""
    group: list[Matrix] = []
    sums = values = 0
    for matrix in matrices:
        parts = [part.stop - part.start for part in split(matrix.inputs)]
        more = sum(map(sum_bytes, parts))
        if group and (sums + more > _SUM_BYTES or values + matrix.bytes > _VALUE_BYTES):
            yield group
            group, sums, values = [], 0, 0
        group.append(matrix)
        sums += more
        values += matrix.bytes
    if group:
        yield group
