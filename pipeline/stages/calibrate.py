"""calibrate: measure the range of every float value over all buckets and samples of a component.

If the model takes a logarithm of what scales with an input, quieter copies of the loudest samples of each bucket are
run as well. So the ranges hold the values of near silence even if no sample has any.

Inputs: ``ingest``, ``samples``, ``rewrite/<bucket>`` for every bucket. Output: ``ranges.json``, {value: [low, high]} as
measured and rounded outward (:meth:`pipeline.graph.quantization.calibration.ranges.Range.rounded`), and where the
method chose narrower ones, ``chosen.json``, {bits: {value: [low, high]}}; ``integers.json``, {value: [low, high]}, has
integers that are negative or beyond 2^24, if there are any. What a language model hands to its next run gets the range
of the least squared error, whatever the method is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from pipeline.contracts import ingest
from pipeline.contracts.calibrate import Facts, Params
from pipeline.contracts.language import LanguageFacts, Lengths
from pipeline.contracts.values import TensorSpec
from pipeline.errors import CalibrationError
from pipeline.graph.files.model_file import MODEL
from pipeline.graph.ir.loudness import inputs_heard
from pipeline.graph.language.loop import Walk
from pipeline.graph.language.names import TOKENS
from pipeline.graph.quantization.calibration.float_ranges import Calibration
from pipeline.graph.quantization.calibration.observe import Observer, Recorder
from pipeline.graph.quantization.calibration.range_choice import Method
from pipeline.graph.quantization.calibration.ranges import write_integers, write_ranges
from pipeline.graph.shapes.buckets import axis_lengths, pad
from pipeline.inputs.samples.held_out import ScoredSample
from pipeline.inputs.samples.quiet import loudest_of, quieter
from pipeline.inputs.samples.sample_set import StoredCall, calibration_calls, place
from pipeline.model import StageRequest, StageResult
from pipeline.progress import counted

_DECODED = 8
"""How many tokens of a conversation are run one by one."""
_AT_ONCE = 2
"""How many conversations run at once: decode runs one while prefill runs the next."""


def run(request: StageRequest) -> StageResult:
    """Run every sample through the float model of the smallest bucket that holds it.

    Raises:
        CalibrationError: no samples, one that fits no bucket, a value that is infinite or NaN, an input never varied.
    """
    params = Params.from_json(request.params)
    buckets = params.buckets
    inputs = ingest.Facts.from_json(request.inputs["ingest"].facts).inputs
    calls = calibration_calls(request.inputs["samples"].folder, params.component, params.part)
    language = ingest.Facts.from_json(request.inputs["ingest"].facts).language
    if language is not None:
        return _spoken(request, params, language, calls)
    placed = place(calls, inputs, buckets)

    calibration = Calibration(Method(params.method, *filter(None, [params.percentile])))
    observers = {}
    for bucket, own in placed.items():
        observer = observers[bucket] = Observer(request.inputs[f"rewrite/{bucket}"].folder / MODEL)
        heard = inputs_heard(observer.index) if params.quiet else ()
        loudest: list[ScoredSample] = []
        for call in counted(own, f"bucket {bucket}, sample", len(own)):
            sample = ScoredSample(call.name, None, None, call.load())
            _see(calibration, observer, sample, params, bucket, inputs)
            if heard:
                loudest = loudest_of([*loudest, sample], heard)
        for sample in quieter(loudest, heard):
            # A logarithm without a floor is infinite in silence: such a model is never given that.
            if calibration.takes(observer, pad(sample.inputs, inputs, params.buckets[bucket], params.padding)):
                _see(calibration, observer, sample, params, bucket, inputs)
            else:
                print(f"{sample.name} is left out: a value of the model itself is infinite or NaN on it")
        calibration.add_constants(observer)
        observer.close()
        print(f"bucket {bucket}: {len(own)} samples" + ("" if own else ", its ranges are those of the others"))
    ranges = calibration.ranges(observers)
    write_ranges(ranges, request.out / "ranges.json")
    write_integers(calibration.integers(observers), request.out)
    facts = Facts(
        samples={bucket: len(own) for bucket, own in placed.items()},
        tensors=len(ranges),
        narrowed={str(bits): len(chosen) for bits, chosen in sorted(ranges.chosen.items())},
        seen={
            given.name: (ranges[given.name].low, ranges[given.name].high) for given in inputs if given.name in ranges
        },
    )
    return StageResult(facts.to_json())


def _see(
    calibration: Calibration,
    observer: Observer,
    sample: ScoredSample,
    params: Params,
    bucket: str,
    inputs: Sequence[TensorSpec],
) -> None:
    """Run one sample."""
    axes = params.buckets[bucket]
    feeds = pad(sample.inputs, inputs, axes, params.padding)
    valid = _valid_share(axis_lengths(sample.inputs, inputs), axes)
    try:
        calibration.add(observer, feeds, where=f"{sample.name} in bucket {bucket}", valid=valid)
    except CalibrationError as error:
        raise error.at(sample.name) from error


def _spoken(request: StageRequest, params: Params, language: LanguageFacts, calls: Sequence[StoredCall]) -> StageResult:
    """Run every conversation as an application does: windows of prefill, then its last tokens one by one, with a cache.

    While decode runs the end of one, prefill reads the next. What is measured does not depend on their order.
    """
    made = [f"past_{kind}_{layer}_out" for layer in range(language.layers) for kind in ("key", "value")]
    observed = {
        bucket: _Observed(bucket, request.inputs[f"rewrite/{bucket}"].folder / MODEL, params, made)
        for bucket in params.buckets
    }
    # Of several lengths of context, the longest: ranges are those of values, whatever the mask leaves out.
    by_width = sorted(observed.values(), key=lambda each: (each.lengths.sequence, -each.lengths.total))
    decode = by_width[0]
    prefill = max(observed.values(), key=lambda each: (each.lengths.total, each.lengths.sequence))

    def run(call: StoredCall) -> None:
        tokens = [int(token) for token in call.load()[TOKENS]]
        walk = Walk(language, prefill.lengths.past)
        split = max(1, len(tokens) - _DECODED)
        for bucket, part in ((prefill, tokens[:split]), (decode, tokens[split:])):
            bucket.run(walk, part, call.name)

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        for _ in counted(threads.map(run, calls), "conversation", len(calls)):
            pass
    calibration = Calibration(Method(params.method, *filter(None, [params.percentile])), states=made)
    for bucket, each in observed.items():
        each.calibration.add_constants(each.observer)
        calibration.join(each.calibration)
        print(f"bucket {bucket}: {each.runs} runs of {len(calls)} conversations")
    ranges = calibration.ranges({bucket: each.observer for bucket, each in observed.items()})
    write_ranges(ranges, request.out / "ranges.json")
    narrowed = {str(bits): len(chosen) for bits, chosen in sorted(ranges.chosen.items())}
    runs = {bucket: each.runs for bucket, each in observed.items()}
    return StageResult(Facts(samples=runs, tensors=len(ranges), narrowed=narrowed).to_json())


class _Observed:
    """A language model's graph, and what was measured of it. Several threads may run it, one after the other."""

    def __init__(self, bucket: str, path: Path, params: Params, states: Sequence[str]) -> None:
        axes = params.buckets[bucket]
        self.lengths = Lengths(axes["sequence"], axes["past"])
        self.observer = Recorder(path)
        self.calibration = Calibration(Method(params.method, *filter(None, [params.percentile])), states)
        self.runs = 0
        self._lock = Lock()
        self._bucket = bucket

    def run(self, walk: Walk, tokens: Sequence[int], name: str) -> None:
        """Run tokens of a conversation, as many at a time as the graph takes."""
        with self._lock:
            for start in range(0, len(tokens), self.lengths.sequence):
                window = tokens[start : start + self.lengths.sequence]
                feeds = walk.feed(self.lengths, window)
                self.calibration.add(self.observer, feeds, where=f"{name} in bucket {self._bucket}")
                walk.took(window, self.observer.made)
                self.runs += 1


def _valid_share(lengths: Mapping[str, int], axes: Mapping[str, int]) -> float:
    """How much of a bucket a call fills, as a share of its elements."""
    return math.prod(min(lengths.get(axis, size) / size, 1.0) for axis, size in axes.items() if size)
