"""verify: measure the rungs of the accuracy ladder that onnxruntime's CPU can run, on samples calibration didn't see.

Each rung is compared with the one above and with the truth, in the region that is valid without padding:

    original       as it came, dynamic; unpadded, unless the application always pads: the truth
    padding        fixed shape, padded
    rewrite        rewritten for HTP
    quantization   the QDQ model; not there for a component that stays in float

If the model takes a logarithm of what scales with an input, quieter variants of the samples are measured, too, and
judged by themselves: ordinary samples don't show what encodings of fixed steps lose of quiet ones.

While the samples run, the stage notes how near each comes to the edges of operators. The emulator runs those first. For
a component that stays in float, the same notes forecast what HTP will compute wrongly.

Inputs: ``ingest``, ``samples``, ``shape``, ``rewrite``, and ``quantize`` unless it stays in float. Files: ``code``,
which holds the score function. Output: ``worst.json``, the worst sample as a page can show it, and
``references.npz``, the outputs that those of every target are held against.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.contracts import ingest
from pipeline.contracts.forecast import Forecast
from pipeline.contracts.measures import Measured, Score, Subject
from pipeline.contracts.verify import UNMEASURED, Facts, Params
from pipeline.graph.accuracy.emulation.emulation_cost import sample_s
from pipeline.graph.accuracy.emulation.sample_order import sample_order
from pipeline.graph.accuracy.emulation.table_rows import Rows, inputs_of_tables, rows_read
from pipeline.graph.accuracy.figures.accuracy import Outputs, valid_outputs
from pipeline.graph.accuracy.figures.choices import ChosenFrom, chosen_outputs, values_of
from pipeline.graph.accuracy.figures.edges import Criteria, criteria, ranges_of
from pipeline.graph.accuracy.figures.measuring import measure, spans_of
from pipeline.graph.accuracy.figures.output_structure import makeup_of_outputs
from pipeline.graph.accuracy.figures.preview import worst_sample, write_preview
from pipeline.graph.accuracy.figures.subjects import choose, part_of, quiet_subjects
from pipeline.graph.accuracy.figures.whole_outputs import without_whole
from pipeline.graph.cpu import load_session
from pipeline.graph.cpu import run as run_model
from pipeline.graph.files.model_file import MODEL, load_graph
from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.ir.loudness import inputs_heard
from pipeline.graph.quantization.calibration.observe import Observer, Recorder
from pipeline.graph.quantization.forecast.htp_errors import forecast
from pipeline.graph.shapes.buckets import spelled
from pipeline.inputs.samples.held_out import HeldOut, fed, held_out, lengths_of
from pipeline.inputs.samples.quiet import quieter
from pipeline.inputs.samples.references import Reference, keep
from pipeline.inputs.samples.score import score
from pipeline.inputs.samples.spoken import verify_language
from pipeline.model import StageRequest, StageResult
from pipeline.progress import counted

MODELS = {"padding": "shape", "rewrite": "rewrite", "quantization": "quantize"}
"""Each rung below the truth, and the input that holds its model."""
_YES = 0.5
"""A probability must reach this on some sample; else it is not known how it says yes."""


def run(request: StageRequest) -> StageResult:
    """Measure every rung, and the score of the first and the last.

    Raises:
        VerificationError: an output has another rank or size than the original's, or the score function fails.
        ConfigError: what the config says of the outputs does not fit them.
    """
    params = Params.from_json(request.params)
    ingested = ingest.Facts.from_json(request.inputs["ingest"].facts)
    if ingested.language is not None:
        return verify_language(request, params, ingested.language)
    inputs = ingested.inputs
    given = held_out(request.inputs["samples"].folder, params, inputs)
    _tell(given, params)
    if not given.samples:
        return StageResult(dataclasses.replace(UNMEASURED, truth=params.truth).to_json())

    names = [sample.name for sample in given.samples]
    original = request.inputs["ingest"].folder
    truth = _run_all("original", original, given.given)
    choices = chosen_outputs(GraphIndex(load_graph(original / MODEL), original))
    chosen_from = values_of(original / MODEL, [of.value for of in choices.values()], given.given)
    subjects = _subjects(params, request, given, truth, choices, chosen_from)
    rungs: dict[str, Measured] = {}
    last: Sequence[Outputs] = truth
    rewritten = Recorder(request.inputs["rewrite"].folder / MODEL)
    touched: list[Criteria] = []
    for rung, role in MODELS.items():
        if role in request.inputs:
            if role == "rewrite":
                touched, made = _watched(rewritten, given.padded)
            else:
                made = _run_all(rung, request.inputs[role].folder, given.padded)
            outputs = [valid_outputs(output, expected, rung) for output, expected in zip(made, truth, strict=True)]
            rungs[rung] = measure(subjects, names, last, outputs, chosen_from=chosen_from)
            last = outputs
            print(f"{rung}: {rungs[rung]}")
    total = measure(subjects, names, truth, last, chosen_from=chosen_from)
    place = worst_sample(total, names)
    sample = given.samples[place]
    words = (sample.text, sample.label)
    write_preview(request.out, sample.name, words, given.given[place], truth[place], last[place])
    apart = zip(names, truth, last, chosen_from, strict=True)
    each = [measure(subjects, [name], [true], [got], chosen_from=[of], read=False) for name, true, got, of in apart]
    rows = rows_read(given.padded, inputs_of_tables(rewritten.index))
    own = len(names) - given.shorter
    order = _order(touched, names, total, [_least_db(figures) for figures in each], rows, own)
    wanted = {subject.chosen_from for subject in subjects.values()}
    chosen = [{name: values[name] for name in values if name in wanted} for values in chosen_from]
    keep(request.out, [Reference(*each) for each in zip(truth, last, chosen, strict=True)], order)
    heard, quiet, quiet_order = _quiet(params, request, given, subjects)
    facts = Facts(
        samples=len(names),
        shorter=given.shorter,
        rungs=rungs,
        outputs=total,
        score=_score(params, request, given, truth, last),
        truth=params.truth,
        subjects=subjects,
        spans=spans_of(subjects, truth),
        lengths=lengths_of(request.inputs["samples"].folder, params, inputs),
        silent=_silent(subjects, truth),
        order=tuple(order),
        sample_s=sample_s(load_graph(_compiled(request) / MODEL)),
        forecasts=() if "quantize" in request.inputs else tuple(_foretold(rewritten, touched)),
        heard=heard,
        quiet=quiet,
        quiet_order=quiet_order,
    )
    return StageResult(facts.to_json())


def _quiet(
    params: Params, request: StageRequest, given: HeldOut, subjects: Mapping[str, Subject]
) -> tuple[tuple[str, ...], Measured, tuple[int, ...]]:
    """The inputs whose loudness a logarithm sees, the figures of quieter samples, and their places, the worst first."""
    shaped = request.inputs["shape"].folder
    inputs = inputs_heard(GraphIndex(load_graph(shaped / MODEL), shaped))
    judged = quiet_subjects(subjects)
    if not inputs or not params.quiet or not judged:
        return inputs, {}, ()
    specs = ingest.Facts.from_json(request.inputs["ingest"].facts).inputs
    made = fed(quieter(given.samples, inputs), params, specs)
    if not made.samples:
        return inputs, {}, ()
    truth = _run_all("original, quieter", request.inputs["ingest"].folder, made.given)
    # A logarithm without a floor is infinite in silence: what the model itself makes nothing of is not judged.
    places = [place for place, outputs in enumerate(truth) if all(np.isfinite(each).all() for each in outputs.values())]
    if not places:
        return inputs, {}, ()
    names, truth = [made.samples[place].name for place in places], [truth[place] for place in places]
    outputs = _run_all("last rung, quieter", _compiled(request), [made.padded[place] for place in places])
    outputs = [valid_outputs(*each, "quiet") for each in zip(outputs, truth, strict=True)]
    figures = measure(judged, names, truth, outputs)
    print(f"a logarithm hears how loud {', '.join(inputs)} is; quieter: {figures}")
    errors = [measure(judged, [name], [true], [got]) for name, true, got in zip(names, truth, outputs, strict=True)]
    ranked = sorted(range(len(names)), key=lambda number: _least_db(errors[number]))
    return inputs, figures, tuple(places[number] for number in ranked)


def _least_db(figures: Measured) -> float:
    return min((-math.inf if each.sqnr_db is None else each.sqnr_db for each in figures.values()), default=math.inf)


def _compiled(request: StageRequest) -> Path:
    """The folder of the model that is compiled for the bucket."""
    return request.inputs["quantize" if "quantize" in request.inputs else "rewrite"].folder


def _tell(given: HeldOut, params: Params) -> None:
    if params.truth == "padded":
        print("truth: padded, as the application pads: the padding rung is exact by definition")
    if given.inexact:
        print(f"{given.inexact} samples are left out: in this bucket of exact lengths they would be padded")
    if not given.samples:
        exactly = f" of exactly {spelled(params.axes)}" if params.truth == "exact" else ""
        print(f"not measured: bucket {params.bucket} holds none of the samples{exactly}")


def _subjects(
    params: Params,
    request: StageRequest,
    given: HeldOut,
    truth: Sequence[Outputs],
    choices: Mapping[str, ChosenFrom],
    chosen_from: Sequence[Outputs],
) -> dict[str, Subject]:
    folder = request.inputs["shape"].folder
    makeup = makeup_of_outputs(GraphIndex(load_graph(folder / MODEL), folder))
    makeup = without_whole(makeup, folder / MODEL, given.padded)
    where = f"outputs of component {params.component!r}"
    subjects = choose(truth, makeup, params.outputs, where, choices=choices, chosen_from=chosen_from)
    apart = [label for label, subject in subjects.items() if label != subject.output]
    if apart:
        print(f"judged apart: {', '.join(apart)}")
    return subjects


def _silent(subjects: Mapping[str, Subject], truth: Sequence[Outputs]) -> tuple[str, ...]:
    """The outputs between 0 and 1 that stay below a half on all samples."""
    largest = {
        label: max(float(part_of(subject, outputs).max(initial=0.0)) for outputs in truth)
        for label, subject in subjects.items()
        if subject.bounded
    }
    found = {label: value for label, value in largest.items() if value < _YES}
    for label, value in found.items():
        print(f"{label!r} is at most {value:.2g} on the held-out samples: that it says yes rightly is not shown")
    return tuple(found)


def _order(
    touched: Sequence[Criteria],
    names: Sequence[str],
    total: Measured,
    errors_db: Sequence[float],
    rows: Sequence[Rows],
    own: int,
) -> list[int]:
    """The places of the samples in the order to emulate them in, the worst on the CPU first.

    The samples that need the bucket, the first `own`, come before shorter ones that stand in for it: few may be run,
    and a sample that leaves most of a bucket empty shows little of its length. Each of both groups is ordered by
    itself, so that a budget which ends within a group has seen samples of every kind.
    """
    ranked = sorted(total.values(), key=lambda found: -1000.0 if found.worst_db is None else found.worst_db)
    worst = [names.index(figures.worst_sample) for figures in ranked]
    if 0 < own < len(names):
        first = [min(range(own), key=errors_db.__getitem__), *(place for place in worst if place < own)]
        worst = [*sample_order(touched[:own], first, errors_db[:own], rows[:own]), *worst]
    return sample_order(touched, worst, errors_db, rows)


def _foretold(observer: Observer, touched: Sequence[Criteria]) -> list[Forecast]:
    """The forecasts of what HTP will compute wrongly in float16, as far as the samples show."""
    told = forecast(observer.index, ranges_of(touched), observer.integers)
    for each in told:
        print(each.line())
    return told


def _watched(recorder: Recorder, feeds: Sequence[Mapping[str, NDArray[Any]]]) -> tuple[list[Criteria], list[Outputs]]:
    """How near each sample comes to the edges of operators in the rewritten model, and the outputs of that run."""
    touched: list[Criteria] = []
    outputs: list[Outputs] = []
    for feed in counted(feeds, "rewrite: sample", len(feeds)):
        recorder.made = {}
        touched.append(criteria(recorder, feed))
        outputs.append(recorder.made)
    names = {value.name for value in recorder.model.graph.output}
    if all(each.keys() == names for each in outputs):
        return touched, outputs
    recorder.close()
    return touched, _run_all("rewrite", recorder.folder, feeds)  # outputs of integers, or without elements


def _run_all(role: str, folder: Path, feeds: Sequence[Mapping[str, NDArray[Any]]]) -> list[Outputs]:
    session = load_session(folder / MODEL)
    return [run_model(session, feed) for feed in counted(feeds, f"{role}: sample", len(feeds))]


def _score(
    params: Params, request: StageRequest, given: HeldOut, truth: Sequence[Outputs], last: Sequence[Outputs]
) -> Score | None:
    if params.score is None:
        return None
    function = (request.files["code"], params.score)
    original, made = score(*function, given.samples, truth, truth), score(*function, given.samples, last, truth)
    if "quantize" in request.inputs:
        return Score(params.score, original, qdq=made)
    return Score(params.score, original, rewritten=made)
