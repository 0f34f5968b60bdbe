"""samples: turn the calibration set into the arrays that each component is called with.

Inputs: ``fetch``, ``ingest/<component>`` for every component. Files: ``samples`` (file or folder) and ``code`` (the
function's file), as the reader needs them. Output: :mod:`pipeline.inputs.samples.sample_set`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pipeline.contracts import ingest
from pipeline.contracts.samples import Facts, Params
from pipeline.errors import CalibrationError
from pipeline.graph.files.given_constants import constant_arrays
from pipeline.graph.files.model_file import MODEL, load_graph
from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.language.names import TOKENS
from pipeline.graph.quantization.calibration.input_guards import input_guards
from pipeline.graph.shapes.buckets import axis_lengths, smallest_bucket
from pipeline.inputs.samples import arrays, audio, chat, function, images, record, text
from pipeline.inputs.samples.conform import Interface
from pipeline.inputs.samples.middle import Middle
from pipeline.inputs.samples.request import Call, ReadRequest
from pipeline.inputs.samples.sample_set import SampleSetWriter
from pipeline.model import StageRequest, StageResult
from pipeline.progress import counted

_READERS: Mapping[str, Callable[[ReadRequest], Iterator[Call]]] = {
    "text": text.read,
    "npz": arrays.read,
    "python": function.read,
    "record": record.read,
    "chat": chat.read,
    "images": images.read,
    "audio": audio.read,
}
_INGEST = "ingest/"


def run(request: StageRequest) -> StageResult:
    """Read the calibration set, check it against the components, and write it.

    A sample that does not fit a component fails the steps of that component which need samples, and of no other.

    Raises:
        CalibrationError: the set is empty or unreadable, or does not fit any component.
    """
    given = _read_request(request)
    writer = SampleSetWriter(request.out)
    lengths: dict[str, dict[str, tuple[int, int]]] = {}
    buckets = Params.from_json(request.params).buckets
    left = {component: dict.fromkeys(each) for component, each in buckets.items()} if _has_lengths(given) else {}
    for call in counted(_READERS[given.calibration.reader](given), "call"):
        writer.add(call)
        if call.refused is not None:
            continue
        seen = lengths.setdefault(call.component, {})
        sizes = _lengths(call, given)
        if call.component in left and (needed := smallest_bucket(sizes, buckets[call.component])) is not None:
            left[call.component].pop(needed, None)
        for axis, length in sizes.items():
            low, high = seen.get(axis, (length, length))
            seen[axis] = (min(low, length), max(high, length))
    for component, error in writer.refused.items():
        print(f"{component}: no sample is used, as one can't be: {error}")
    if len(writer.refused) == len(given.interfaces) or (writer.refused and not writer.samples):
        raise next(iter(writer.refused.values()))
    if not writer.samples:
        raise _empty(given)
    writer.finish()
    cut = sum(sample.cut for sample in writer.samples)
    usable = {component: number for component, number in writer.counts.items() if component not in writer.refused}
    count = {component: usable.get(component, 0) for component in given.interfaces}
    for component in given.interfaces:
        spans = [f"{axis} {low} to {high}" for axis, (low, high) in lengths.get(component, {}).items()]
        print(", ".join([f"{component}: {count[component]} samples", *spans]))
    if cut:
        print(f"{cut} of {len(writer.samples)} texts were longer than max_length or the largest bucket, and were cut")
    unneeded = {component: tuple(names) for component, names in left.items() if names and count[component]}
    return StageResult(Facts(count, len(writer.samples), cut, lengths, unneeded or None).to_json())


def _has_lengths(given: ReadRequest) -> bool:
    """Whether each call belongs to one bucket. A conversation does not: it goes through all of them."""
    return given.calibration.reader != "chat"


def _lengths(call: Call, given: ReadRequest) -> Mapping[str, int]:
    if not _has_lengths(given):
        return {TOKENS: len(call.arrays[TOKENS])}
    return axis_lengths(call.arrays, given.interfaces[call.component].inputs)


def _read_request(request: StageRequest) -> ReadRequest:
    ingested = {role.removeprefix(_INGEST): given for role, given in request.inputs.items() if role.startswith(_INGEST)}
    interfaces = {component: ingest.Facts.from_json(given.facts) for component, given in ingested.items()}
    params = Params.from_json(request.params)
    return ReadRequest(
        params.calibration,
        {
            component: Interface(
                interfaces[component].inputs,
                params.buckets[component],
                params.fixed[component],
                constant_arrays(interfaces[component].constants),
                interfaces[component].gone or (),
                _middle(request, interfaces[component]),
                _taking_nan(ingested[component].folder),
            )
            for component in ingested
        },
        {component: given.folder / MODEL for component, given in ingested.items()},
        request.inputs["fetch"].folder,
        request.inputs["data"].folder / params.calibration.inside
        if params.calibration.inside is not None
        else request.files.get("samples"),
        request.files.get("code"),
        {component: facts.language for component, facts in interfaces.items() if facts.language is not None},
    )


def _middle(request: StageRequest, facts: ingest.Facts) -> Middle | None:
    """Where a component begins in its file, if it does."""
    if facts.begin is None:
        return None
    file = request.inputs["fetch"].folder / facts.begin.file
    return Middle(file, facts.begin.values, constant_arrays(facts.begin.constants))


def _taking_nan(folder: Path) -> frozenset[str]:
    """The inputs in which a component replaces a NaN itself."""
    return input_guards(GraphIndex(load_graph(folder / MODEL), folder)).takes_nan


def _empty(given: ReadRequest) -> CalibrationError:
    shown = given.samples.name if given.samples else "the function"
    return CalibrationError(
        f"the calibration set is empty: {shown} gives no samples",
        where=shown,
        why="the ranges of a quantized model come from real samples",
        remedy="give it some: 16 to 64 that are typical of the model's use, short and long",
    )
