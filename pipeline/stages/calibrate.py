"""calibrate: measure the range of every float value over all buckets and samples of a component.

Inputs: ``ingest``, ``samples``, ``rewrite/<bucket>`` for every bucket. Params: ``component``, ``buckets`` (name ->
axes), ``padding`` (input -> value, 0 if not there), ``method`` (``minmax``, ``percentile``, ``entropy``, ``mse``),
``percentile`` (in percent, with that method). Output: ``ranges.json``, {value: [low, high]} as measured and rounded
outward (:meth:`pipeline.graph.encodings.Range.rounded`), and where the method chose narrower ones, ``chosen.json``,
{bits: {value: [low, high]}}. Facts: ``samples`` (bucket -> how many it is the smallest for; one without any uses the
ranges of the others), ``tensors``, ``narrowed`` (bits -> how many values).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

from pipeline.errors import CalibrationError
from pipeline.graph.buckets import ModelInput, axis_lengths, fits_no_bucket, model_inputs, pad, smallest_bucket
from pipeline.graph.calibration import Calibration
from pipeline.graph.encodings import write_ranges
from pipeline.graph.model_file import MODEL
from pipeline.graph.observe import Observer
from pipeline.graph.range_choice import Method
from pipeline.model import Json, StageRequest, StageResult
from pipeline.readers.sample_set import StoredCall, calibration_calls

Buckets = Mapping[str, Mapping[str, int]]


def run(request: StageRequest) -> StageResult:
    """Run every sample through the float model of the smallest bucket that holds it.

    Raises:
        CalibrationError: no samples, one that fits no bucket, a value that is infinite or NaN, an input never varied.
    """
    component = str(request.params["component"])
    rules = cast("Mapping[str, float]", request.params["padding"])
    buckets = cast("Buckets", request.params["buckets"])
    inputs = model_inputs(request.inputs["ingest"].facts)
    placed = _place(request, component, inputs, buckets)

    calibration = Calibration(_method(request))
    observers = {}
    for bucket, calls in placed.items():
        observer = observers[bucket] = Observer(request.inputs[f"rewrite/{bucket}"].folder / MODEL)
        for call in calls:
            arrays = call.load()
            feeds = pad(arrays, inputs, buckets[bucket], rules)
            valid = _valid_share(axis_lengths(arrays, inputs), buckets[bucket])
            try:
                calibration.add(observer, feeds, where=f"{call.name} in bucket {bucket}", valid=valid)
            except CalibrationError as error:
                raise error.at(call.name) from error
        calibration.add_constants(observer)
        observer.close()
        print(f"bucket {bucket}: {len(calls)} samples" + ("" if calls else ", its ranges are those of the others"))
    ranges = calibration.ranges(observers)
    write_ranges(ranges, request.out / "ranges.json")
    counts = {bucket: len(calls) for bucket, calls in placed.items()}
    narrowed: dict[str, Json] = {str(bits): len(chosen) for bits, chosen in sorted(ranges.chosen.items())}
    return StageResult({"samples": {**counts}, "tensors": len(ranges), "narrowed": narrowed})


def _method(request: StageRequest) -> Method:
    name = str(request.params["method"])
    return Method(name, cast("float", request.params["percentile"])) if name == "percentile" else Method(name)


def _valid_share(lengths: Mapping[str, int], axes: Mapping[str, int]) -> float:
    """How much of a bucket a call fills, as a share of its elements."""
    return math.prod(min(lengths.get(axis, size) / size, 1.0) for axis, size in axes.items() if size)


def _place(
    request: StageRequest, component: str, inputs: Sequence[ModelInput], buckets: Buckets
) -> dict[str, list[StoredCall]]:
    """The calls of a component by bucket: each goes to the smallest that holds it."""
    placed: dict[str, list[StoredCall]] = {bucket: [] for bucket in buckets}
    for call in calibration_calls(request.inputs["samples"].folder, component, str(request.params.get("part", "all"))):
        lengths = axis_lengths(call.load(), inputs)
        bucket = smallest_bucket(lengths, buckets)
        if bucket is None:
            raise fits_no_bucket(call.name, lengths, buckets)
        placed[bucket].append(call)
    return placed
