"""reading: hold what ``ingest`` made of a component against the source's own file, on some held-out samples.

The file runs as it is, its bytes untouched and without optimizations. The samples are, of each bucket, those that are
worst on later rungs and those that come near the edges of operators, as ``verify`` ordered them. The outputs of the
model of ``ingest`` are those that ``verify`` kept, so that the rung costs one run of the file on each of these samples.

A file that rounds as it runs gives something else than the floats that it stands for. Where that happens, each of its
operators is held alone: see :mod:`pipeline.graph.accuracy.reading.own_rounding`.

The file runs in a process of its own, which it may end. If onnxruntime does not run it, ONNX's reference evaluator has
a try, in bounded time.

A language model is held against llama.cpp: see :mod:`pipeline.inputs.second_reader`.

Inputs: ``fetch``, ``ingest``, and unless it is a language model ``samples``, ``verify/<bucket>``. No output but facts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.contracts import ingest
from pipeline.contracts.limits import READING_DB
from pipeline.contracts.measures import Measured, Measuring, Subject
from pipeline.contracts.reading import Facts, Looked, Params, ReadingResult
from pipeline.frozen import dataclass
from pipeline.graph.accuracy.figures.choices import values_of
from pipeline.graph.accuracy.figures.measuring import measure
from pipeline.graph.accuracy.reading.own_rounding import hold_alone
from pipeline.graph.accuracy.reading.source_file import Engine, SourceFile
from pipeline.graph.cpu import load_session
from pipeline.graph.cpu import run as run_model
from pipeline.graph.files.given_constants import constant_arrays
from pipeline.graph.files.model_file import MODEL
from pipeline.inputs.samples.held_out import held_out
from pipeline.inputs.samples.references import kept
from pipeline.inputs.samples.sample_set import load_npz, write_npz
from pipeline.inputs.second_reader import read_again
from pipeline.model import StageRequest, StageResult
from pipeline.processes import forked

_MOST = 6
"""Samples in all; of each bucket at least one."""
_REFERENCE_MOST = 2
"""Samples that the reference evaluator computes, which takes a hundred times as long."""
_CPU_S = {"onnxruntime": 3600, "onnx.reference": 300}
_WHY, _WRONG = "why.txt", "wrong.txt"

Outputs = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class _Sample:
    """A sample of a bucket: its place among the bucket's, and the inputs as the application gives them."""

    bucket: str
    place: int
    name: str
    feed: Outputs


def run(request: StageRequest) -> StageResult:
    """Measure the rung.

    Raises:
        CalibrationError: a sample fits no bucket, or the model that was read cannot compute one.
    """
    params = Params.from_json(request.params)
    facts = ingest.Facts.from_json(request.inputs["ingest"].facts)
    if facts.language is not None:
        file = request.inputs["fetch"].folder / params.file
        read_twice = read_again(file, request.inputs["ingest"].folder, facts.language)
        return _answer(read_twice.reading, read_twice.figures, {})
    looked = {bucket: Looked.from_json(request.inputs[f"verify/{bucket}"].facts) for bucket in params.buckets}
    subjects = {label: subject for each in looked.values() for label, subject in each.subjects.items()}
    samples = _samples(request, params, facts, looked)
    if not samples:
        return _answer(ReadingResult(shown="not proven", why="no held-out sample fits"), {}, subjects)
    source = SourceFile(
        request.inputs["fetch"].folder / params.file,
        tuple(spec.name for spec in facts.outputs),
        params.cut,
        params.begin or (),
        constant_arrays(facts.constants),
    )
    with TemporaryDirectory() as folder:
        work = Path(folder)
        by, made, why = _run_file(source, [sample.feed for sample in samples], work)
        if by is None:
            return _answer(ReadingResult(shown="not proven", why=why), {}, subjects)
        samples = samples[: len(made)]
        read, chosen_from = _what_was_read(request, samples, subjects, source.outputs)
        pairs = [_comparable(*each) for each in zip(made, read, strict=True)]

        def measured(places: Sequence[int]) -> Measured:
            truth, tested = ([pairs[place][side] for place in places] for side in (0, 1))
            names, values = [samples[place].name for place in places], [chosen_from[place] for place in places]
            return measure(subjects, names, truth, tested, chosen_from=values, read=False)

        places = range(len(samples))
        figures, reading = measured(places), ReadingResult(shown="exact", samples=len(samples), by=by)
        if least_db(figures) < READING_DB:
            worst = min(places, key=lambda place: least_db(measured([place])))
            reading = _explained(reading, source, request.inputs["ingest"].folder / MODEL, samples[worst].feed, work)
    return _answer(reading, figures, subjects)


def least_db(figures: Measured) -> float:
    """The least SQNR of all subjects; minus infinity if one has none."""
    return min((-math.inf if each.sqnr_db is None else each.sqnr_db for each in figures.values()), default=math.inf)


def _answer(reading: ReadingResult, figures: Measured, subjects: Mapping[str, Subject]) -> StageResult:
    print(f"reading: {reading.shown}, {reading.samples} samples by {reading.by}: {reading.why or figures}")
    return StageResult(Facts(reading=reading, figures=figures, subjects=subjects).to_json())


def _samples(request: StageRequest, params: Params, facts: ingest.Facts, looked: Mapping[str, Looked]) -> list[_Sample]:
    """The first samples of each bucket in the order of `verify`; one that is given alike for several is there once."""
    found: dict[str, _Sample] = {}
    for bucket, each in looked.items():
        measuring = Measuring(
            component=params.component,
            buckets=params.buckets,
            bucket=bucket,
            axes=params.buckets[bucket],
            padding=params.padding,
            part=params.part,
            truth=params.truth,
        )
        given = held_out(request.inputs["samples"].folder, measuring, facts.inputs)
        for place in each.order[: max(1, _MOST // len(looked))]:
            name = given.samples[place].name
            alike = name if params.truth != "padded" else f"{bucket}/{name}"
            found.setdefault(alike, _Sample(bucket, place, name, given.given[place]))
    return [*found.values()]


def _run_file(source: SourceFile, feeds: Sequence[Outputs], work: Path) -> tuple[Engine | None, list[Outputs], str]:
    """The engine that ran the file and its outputs for the first feeds; or None, and the reason of each engine."""
    reasons: list[str] = []
    engines: Mapping[Engine, int] = {"onnxruntime": len(feeds), "onnx.reference": _REFERENCE_MOST}
    for engine, most in engines.items():
        folder = work / engine
        folder.mkdir()
        given = feeds[:most]
        if failed := forked.attempt(partial(_compute, source, engine, given, folder), _CPU_S[engine]):
            reasons.append(f"{engine}: {(folder / _WHY).read_text('utf-8') if (folder / _WHY).exists() else failed}")
            continue
        made = [load_npz(folder / str(number)) for number in range(len(given))]
        return engine, [{name: each[str(place)] for place, name in enumerate(source.outputs)} for each in made], ""
    return None, [], "neither engine runs the file; " + "; ".join(reasons)


def _compute(source: SourceFile, engine: Engine, feeds: Sequence[Outputs], folder: Path) -> None:
    """Write the outputs of a file for each feed into a folder, or the reason why there are none."""
    try:
        computed = source.runner(engine, feeds[0])
        for number, feed in enumerate(feeds):
            made = computed(feed)
            write_npz(folder / str(number), {str(place): made[name] for place, name in enumerate(made)})
    except Exception as error:  # onnxruntime's and numpy's have no base of their own
        (folder / _WHY).write_text(_told(error), "utf-8")
        raise


def _told(error: Exception) -> str:
    return " ".join(str(error).split(" : ")[-1].split())[:400] or type(error).__name__


def _what_was_read(
    request: StageRequest, samples: Sequence[_Sample], subjects: Mapping[str, Subject], outputs: Sequence[str]
) -> tuple[list[Outputs], list[Outputs]]:
    """The outputs of the model that was read, and the values that choices are made from, as `verify` kept them."""
    wanted = [subject.chosen_from for subject in subjects.values() if subject.chosen_from]
    model = request.inputs["ingest"].folder / MODEL
    session = None
    read: list[Outputs] = []
    chosen_from: list[Outputs] = []
    for sample in samples:
        folder = request.inputs[f"verify/{sample.bucket}"].folder
        found = kept(folder, [sample.place], outputs, wanted).get(sample.place)
        if found is not None:
            read.append(found.truth)
            chosen_from.append(found.chosen_from)
        else:
            session = session or load_session(model)
            read.append(run_model(session, sample.feed))
            chosen_from += values_of(model, wanted, [sample.feed])
    return read, chosen_from


def _comparable(file: Outputs, read: Outputs) -> tuple[Outputs, Outputs]:
    """Both outputs, with 0 where both are NaN; NaN throughout in place of an output of another shape or type."""
    truth, tested = dict(file), dict(read)
    for name, array in file.items():
        if read[name].shape != array.shape or read[name].dtype != array.dtype:
            found = f"{read[name].dtype} {[*read[name].shape]}"
            print(f"output {name!r} is {found}, in the file {array.dtype} {[*array.shape]}")
            truth[name], tested[name] = np.ones(array.shape, np.float32), np.full(array.shape, np.nan, np.float32)
        elif array.dtype.kind == "f" and (both := np.isnan(array) & np.isnan(read[name])).any():
            truth[name], tested[name] = np.where(both, 0, array), np.where(both, 0, read[name])
    return truth, tested


def _explained(reading: ReadingResult, source: SourceFile, model: Path, feed: Outputs, work: Path) -> ReadingResult:
    """The result for a file that gives something else than what was read of it."""
    by = reading.by
    assert by == "onnxruntime" or by == "onnx.reference"

    def compute() -> None:
        try:
            wrong = hold_alone(source, model, feed, by)
        except Exception as error:
            wrong = f"its operators cannot be held alone: {_told(error)}"
        (work / _WRONG).write_text(wrong, "utf-8")

    failed = forked.attempt(compute, _CPU_S[by])
    wrong = f"its operators cannot be held alone: {failed}" if failed else (work / _WRONG).read_text("utf-8")
    if wrong:
        return dataclasses.replace(reading, shown="differs", why=wrong)
    return dataclasses.replace(reading, shown="own rounding")
