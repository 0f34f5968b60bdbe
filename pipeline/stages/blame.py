"""blame: rank the values of one bucket by what is lost at each, and name the first that went wrong, with reasons.

``verify`` measures outputs. This stage measures every float value, rung by rung, on some of the same held-out samples.

If the model takes a logarithm of what scales with an input, samples are made quieter as well. If no given sample loses
more than it may and a quieter one loses more than they do, the worst quieter one is measured in their place.

Inputs: ``ingest``, ``samples``, ``shape``, ``rewrite``, and ``quantize`` and ``calibrate`` unless it stays in float.
Output: ``blame.json``, ``{"rungs": {rung: rows}, "order": {rung: values}}``, rows ranked, the worst first, and values
in the order of the graph; ``report.txt``, what is printed;
``worst.npz``, the sample whose outputs the encodings cost most, in float and in QDQ.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.contracts import ingest
from pipeline.contracts.blame import Facts, Params
from pipeline.contracts.limits import WORST_BELOW_DB
from pipeline.graph.accuracy.blame.blame import Row, compare_values, first_wrong, ranked
from pipeline.graph.accuracy.blame.quantization_blame import quantized_values
from pipeline.graph.accuracy.figures.accuracy import valid_outputs
from pipeline.graph.accuracy.figures.output_structure import heard_in_silence
from pipeline.graph.accuracy.figures.state_outputs import heard_without_states
from pipeline.graph.accuracy.figures.trace import TracedModel, View
from pipeline.graph.accuracy.figures.worst_sample import error_db, write_worst
from pipeline.graph.cpu import load_session
from pipeline.graph.cpu import run as cpu
from pipeline.graph.files.model_file import MODEL, load_graph
from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.quantization.calibration.ranges import Range, read_ranges
from pipeline.graph.shapes.buckets import Arrays
from pipeline.inputs.samples.held_out import HeldOut, fed, held_out
from pipeline.inputs.samples.quiet import is_silent, quieter
from pipeline.model import StageRequest, StageResult
from pipeline.plain_text import printable

MOST_SAMPLES = 16
"""How many samples are run, from the first on. A few show where a graph goes wrong."""

WORST = 20
"""How many rows the facts and the table have."""

_WIDTH = 48


def run(request: StageRequest) -> StageResult:
    """Measure every value of every rung.

    Raises:
        CalibrationError: a sample fits no bucket, or the model can't compute it.
    """
    params = Params.from_json(request.params)
    inputs = ingest.Facts.from_json(request.inputs["ingest"].facts).inputs
    given = held_out(request.inputs["samples"].folder, params, inputs)
    samples, padded = given.samples[:MOST_SAMPLES], given.padded[:MOST_SAMPLES]
    if not samples:
        print(f"not measured: bucket {params.bucket} holds none of the samples")
        return StageResult(Facts(samples=0, of=0, worst=(), first_wrong={}).to_json())
    originals = given.given[:MOST_SAMPLES]
    quiet = _worst_quiet(request, params, given)
    if quiet is not None:
        print(f"looked at is {quiet.samples[0].name}: the samples that were given lose no more than they may")
        samples, padded, originals = quiet.samples, quiet.padded, quiet.given
    original = _view(request, "ingest", originals)
    shaped, rewritten = _view(request, "shape", padded), _view(request, "rewrite", padded)
    rungs = {
        "padding": compare_values("padding", original, shaped),
        "rewrite": compare_values("rewrite", shaped, rewritten, original),
    }
    if "quantize" in request.inputs:
        ranges = read_ranges(request.inputs["calibrate"].folder / "ranges.json")
        quantized = _view(request, "quantize", padded)
        rungs["quantization"] = quantized_values(rewritten, quantized, original, ranges)
        _write_worst(request, padded)
    least = params.thresholds
    wrong = {rung: first_wrong(rows, least[rung]) for rung, rows in rungs.items()}
    worst = ranked(rungs.get("quantization", []))[:WORST]
    text = "".join(f"{line}\n" for line in (*_table(worst), *_named(wrong, least)))
    print(text, end="")
    (request.out / "report.txt").write_text(text, "utf-8", newline="\n")
    listed = {rung: [row.facts().to_json() for row in ranked(rows)] for rung, rows in rungs.items()}
    order = {rung: [row.value for row in rows] for rung, rows in rungs.items()}
    found = json.dumps({"rungs": listed, "order": order}, indent=1)
    (request.out / "blame.json").write_text(found + "\n", "utf-8", newline="\n")
    facts = Facts(
        samples=len(samples),
        of=len(given.samples),
        worst=tuple(row.facts() for row in worst),
        first_wrong={rung: tuple(row.facts() for row in rows) for rung, rows in wrong.items()},
        quiet=quiet.samples[0].name if quiet is not None else None,
    )
    return StageResult(facts.to_json())


def _worst_quiet(request: StageRequest, params: Params, given: HeldOut) -> HeldOut | None:
    """The worst quieter sample, if it is worse than the given ones and none of these misses; else None."""
    shaped, inputs = request.inputs["shape"].folder, ingest.Facts.from_json(request.inputs["ingest"].facts).inputs
    index = GraphIndex(load_graph(shaped / MODEL), shaped)
    judged = heard_in_silence(index) if params.quiet else frozenset()
    heard = heard_without_states(index) if judged else ()
    made = fed([each for each in quieter(given.samples, heard) if not is_silent(each, heard)], params, inputs)
    if not made.samples:
        return None
    roles = ("ingest", "quantize" if "quantize" in request.inputs else "rewrite")
    sessions = [load_session(request.inputs[role].folder / MODEL) for role in roles]

    def lost(feeds: Sequence[Arrays], padded: Sequence[Arrays], names: Collection[str] = ()) -> list[float]:
        """The dB of each sample against the original, infinite where that itself gives no number.

        Of the outputs with these `names`, or of all.
        """
        found = []
        for feed, filled in zip(feeds, padded, strict=True):
            truth = cpu(sessions[0], feed)
            finite = all(np.isfinite(each).all() for each in truth.values())
            outputs = valid_outputs(cpu(sessions[1], filled), truth, "quiet")
            told = {name: truth[name] for name in names or truth}
            found.append(error_db(told, outputs) if finite else math.inf)
        return found

    least = params.thresholds["quantization"]
    ordinary = lost(given.given[:MOST_SAMPLES], given.padded[:MOST_SAMPLES])
    quiet = lost(made.given, made.padded, judged)
    # As gates ask: all together keep to the threshold, and no single one falls too far below it.
    fine = statistics.median(ordinary) >= least and min(ordinary) >= least - WORST_BELOW_DB
    if not fine or min(quiet) >= min(ordinary):
        return None
    worst = quiet.index(min(quiet))
    return HeldOut((made.samples[worst],), (made.given[worst],), (made.padded[worst],))


def _write_worst(request: StageRequest, padded: Sequence[Arrays]) -> None:
    def outputs(role: str) -> list[dict[str, NDArray[Any]]]:
        session = load_session(request.inputs[role].folder / MODEL)  # one at a time: what they keep is as large
        return [cpu(session, feeds) for feeds in padded]

    results = list(zip(outputs("rewrite"), outputs("quantize"), strict=True))
    place = min(range(len(padded)), key=lambda number: error_db(*results[number]))
    write_worst(request.out, padded[place], *results[place])


def _named(wrong: Mapping[str, Sequence[Row]], least: Mapping[str, float]) -> list[str]:
    lines = []
    for rung, rows in wrong.items():
        if rows:
            lines += [
                f"first wrong by {rung}, under {least[rung]:g} dB:",
                *(f"  {row.line()}" for row in rows),
            ]
    return lines


def _table(rows: Sequence[Row]) -> list[str]:
    """Rows as text. ``dB`` is with all errors before; ``own`` and ``weights`` are what is lost here, and why."""
    if not rows:
        return []
    head = ("value", "op", "encoding", "covers", "seen", "dB", "own", "weights", "lost here by")
    lines: list[tuple[str, ...]] = [head]
    for row in rows:
        encoding = row.encoding
        lines.append(
            (
                _cut(row.value),
                row.op or "input",
                encoding.dtype if encoding else "float",
                _spelled(encoding.covers) if encoding else "",
                _spelled(row.observed),
                *(_db(db) for db in (row.sqnr_db, row.own_db, row.weights_db)),
                f"{row.local.name}: {row.local.text}" if row.local else "",
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(head) - 1)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[-1]]).rstrip()
        for line in lines
    ]


def _view(request: StageRequest, role: str, feeds: Sequence[Arrays]) -> View:
    return View(TracedModel(request.inputs[role].folder / MODEL), feeds)


def _cut(name: str) -> str:
    """The end of a long name, where names differ from each other."""
    name = printable(name, keep="")  # one row, whatever it holds
    return name if len(name) <= _WIDTH else f"…{name[-_WIDTH + 1 :]}"


def _spelled(values: Range) -> str:
    return f"{values.low:.4g} .. {values.high:.4g}"


def _db(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
