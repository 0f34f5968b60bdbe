"""samples: turn the calibration set into the arrays that each component is called with.

Inputs: ``fetch``, ``ingest/<component>`` for every component. Files: ``samples`` (file or folder) and ``code`` (the
function's file), as the reader needs them. Params: ``calibration`` (the config's section), ``buckets`` (component ->
bucket -> axes), ``fixed`` (component -> axis -> value, optional). Output: :mod:`pipeline.readers.sample_set`. Facts:
``count`` (component -> calls), ``samples``, ``cut`` (how many were truncated) and ``lengths`` (component -> axis ->
[shortest, longest]).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from pipeline.errors import CalibrationError
from pipeline.graph.buckets import axis_lengths, model_inputs
from pipeline.graph.model_file import MODEL
from pipeline.model import Json, StageRequest, StageResult
from pipeline.readers import arrays, function, record, text
from pipeline.readers.conform import Interface
from pipeline.readers.request import Calibration, Call, ReadRequest
from pipeline.readers.sample_set import SampleSetWriter

_READERS: Mapping[str, Callable[[ReadRequest], Iterator[Call]]] = {
    "text": text.read,
    "npz": arrays.read,
    "python": function.read,
    "record": record.read,
}
_INGEST = "ingest/"


def run(request: StageRequest) -> StageResult:
    """Read the calibration set, check it against the components, and write it.

    Raises:
        CalibrationError: the set is empty, unreadable, or does not fit a component.
    """
    given = _read_request(request)
    writer = SampleSetWriter(request.out)
    lengths: dict[str, dict[str, list[int]]] = {}
    for call in _READERS[given.calibration.reader](given):
        writer.add(call)
        seen = lengths.setdefault(call.component, {})
        for axis, length in axis_lengths(call.arrays, given.interfaces[call.component].inputs).items():
            low, high = seen.get(axis, (length, length))
            seen[axis] = [min(low, length), max(high, length)]
    if not writer.samples:
        raise _empty(given)
    writer.finish()
    cut = sum(sample.cut for sample in writer.samples)
    count: dict[str, Json] = {component: writer.counts.get(component, 0) for component in given.interfaces}
    for component in given.interfaces:
        spans = [f"{axis} {low} to {high}" for axis, (low, high) in lengths.get(component, {}).items()]
        print(", ".join([f"{component}: {count[component]} samples", *spans]))
    if cut:
        print(f"{cut} of {len(writer.samples)} texts were longer than max_length or the largest bucket, and were cut")
    facts: dict[str, Json] = {
        "count": count,
        "samples": len(writer.samples),
        "cut": cut,
        "lengths": {component: {axis: [*span] for axis, span in axes.items()} for component, axes in lengths.items()},
    }
    return StageResult(facts)


def _read_request(request: StageRequest) -> ReadRequest:
    ingested = {role.removeprefix(_INGEST): given for role, given in request.inputs.items() if role.startswith(_INGEST)}
    buckets, fixed = request.params["buckets"], request.params.get("fixed", {})
    assert isinstance(buckets, dict)
    assert isinstance(fixed, dict)
    return ReadRequest(
        Calibration.from_json(request.params["calibration"]),
        {
            component: Interface(
                model_inputs(given.facts), _bucket_axes(buckets[component]), _axes(fixed.get(component))
            )
            for component, given in ingested.items()
        },
        {component: given.folder / MODEL for component, given in ingested.items()},
        request.inputs["fetch"].folder,
        request.files.get("samples"),
        request.files.get("code"),
    )


def _bucket_axes(buckets: Json) -> dict[str, dict[str, int]]:
    assert isinstance(buckets, dict)
    return {name: _axes(axes) for name, axes in buckets.items()}


def _axes(axes: Json) -> dict[str, int]:
    return {axis: value for axis, value in axes.items() if isinstance(value, int)} if isinstance(axes, dict) else {}


def _empty(given: ReadRequest) -> CalibrationError:
    shown = given.samples.name if given.samples else "the function"
    return CalibrationError(
        f"the calibration set is empty: {shown} gives no samples",
        where=shown,
        why="the ranges of a quantized model come from real samples",
        remedy="give it some: 16 to 64 that are typical of the model's use, short and long",
    )
