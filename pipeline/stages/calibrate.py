"""calibrate: measure the range of every float value over all buckets and samples of a component.

Inputs: ``ingest``, ``samples``, ``rewrite/<bucket>`` for every bucket. Output: ``ranges.json``, {value: [low, high]} as
measured and rounded outward (:meth:`pipeline.graph.quantization.ranges.Range.rounded`), and where the method chose
narrower ones, ``chosen.json``, {bits: {value: [low, high]}}; ``integers.json``, {value: [low, high]}, has integers that
are negative or beyond 2^24, if there are any.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from pipeline.contracts import ingest
from pipeline.contracts.calibrate import Facts, Params
from pipeline.errors import CalibrationError
from pipeline.graph.files.model_file import MODEL
from pipeline.graph.quantization.calibration import Calibration
from pipeline.graph.quantization.observe import Observer
from pipeline.graph.quantization.range_choice import Method
from pipeline.graph.quantization.ranges import write_integers, write_ranges
from pipeline.graph.shapes.buckets import axis_lengths, pad
from pipeline.inputs.samples.sample_set import calibration_calls, place
from pipeline.model import StageRequest, StageResult


def run(request: StageRequest) -> StageResult:
    """Run every sample through the float model of the smallest bucket that holds it.

    Raises:
        CalibrationError: no samples, one that fits no bucket, a value that is infinite or NaN, an input never varied.
    """
    params = Params.from_json(request.params)
    buckets = params.buckets
    inputs = ingest.Facts.from_json(request.inputs["ingest"].facts).inputs
    calls = calibration_calls(request.inputs["samples"].folder, params.component, params.part)
    placed = place(calls, inputs, buckets)

    calibration = Calibration(Method(params.method, *filter(None, [params.percentile])))
    observers = {}
    for bucket, own in placed.items():
        observer = observers[bucket] = Observer(request.inputs[f"rewrite/{bucket}"].folder / MODEL)
        for call in own:
            arrays = call.load()
            feeds = pad(arrays, inputs, buckets[bucket], params.padding)
            valid = _valid_share(axis_lengths(arrays, inputs), buckets[bucket])
            try:
                calibration.add(observer, feeds, where=f"{call.name} in bucket {bucket}", valid=valid)
            except CalibrationError as error:
                raise error.at(call.name) from error
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
    )
    return StageResult(facts.to_json())


def _valid_share(lengths: Mapping[str, int], axes: Mapping[str, int]) -> float:
    """How much of a bucket a call fills, as a share of its elements."""
    return math.prod(min(lengths.get(axis, size) / size, 1.0) for axis, size in axes.items() if size)
