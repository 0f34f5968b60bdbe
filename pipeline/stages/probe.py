"""probe: find the first values of one bucket that the emulator computes otherwise than the CPU does.

``emulate`` measures outputs. This stage measures values between nodes: it compiles the model a few times with some of
them as outputs, and runs one sample. :mod:`pipeline.qnn.running.probe` says what that can show.

If the model takes a logarithm of what scales with an input, the sample is run fading and quieter as well. If its own
outputs are right, the probe looks at the variant with the worst outputs.

Inputs: ``ingest``, ``samples``, ``shape``, ``model`` (what was compiled: QDQ or float), and optionally ``emulate``,
whose worst sample is then run. Without it, the sample that rounded inputs harm most is run or, if they harm none, the
loudest, as the first may be silence. Output: ``report.txt``, what is printed; ``worst.npz``, the sample that was run
and its outputs.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pipeline.contracts import emulate, ingest
from pipeline.contracts.blame import OF_INTEGERS
from pipeline.contracts.limits import STATE_DB
from pipeline.contracts.probe import Facts, Params
from pipeline.contracts.values import TensorSpec
from pipeline.graph.accuracy.blame.blame import first_wrong
from pipeline.graph.accuracy.figures.output_structure import heard_in_silence
from pipeline.graph.accuracy.figures.state_outputs import heard_without_states, state_outputs
from pipeline.graph.accuracy.figures.worst_sample import write_worst
from pipeline.graph.accuracy.reading.input_rounding import left_at_the_edge_db, lost_by_inputs, rounded_db
from pipeline.graph.files.model_file import MODEL, load_graph
from pipeline.graph.ir.index import GraphIndex, is_op
from pipeline.graph.shapes.cut_points import ends_before, handed_on
from pipeline.inputs.samples.held_out import HeldOut, ScoredSample, fed, held_out
from pipeline.inputs.samples.quiet import is_silent, loudest_of, quieter
from pipeline.model import StageRequest, StageResult
from pipeline.qnn.running.probe import probe

_MOST_ROUNDED = 16
"""How many samples are run with rounded inputs, from the first on."""

MOST_COMPILES = 3
"""How many compiles a search takes at most. The first one or two find the stretch, the last looks at all of it."""


def run(request: StageRequest) -> StageResult:
    """Search for the first values that go wrong.

    Raises:
        CalibrationError: a sample fits no bucket, or the model can't compute it.
    """
    params = Params.from_json(request.params)
    inputs = ingest.Facts.from_json(request.inputs["ingest"].facts).inputs
    given = held_out(request.inputs["samples"].folder, params, inputs)
    if not given.samples:
        print(f"not measured: bucket {params.bucket} holds none of the samples")
        return StageResult(Facts(sample=None, values=0, first_wrong={"compile": ()}).to_json())
    least = params.thresholds["compile"]
    shaped = request.inputs["shape"].folder
    index = GraphIndex(load_graph(shaped / MODEL), shaped)
    # Of a state more is asked for than of any value on the way.
    states = state_outputs(index)
    asked = least + (STATE_DB if states else 0.0)
    place = _worst(request, given, asked)
    judged = heard_in_silence(index) if params.quiet else frozenset()
    heard = heard_without_states(index) if judged else ()
    made = _quieter(heard, params, given.samples[place], inputs)
    samples, padded = (given.samples[place], *made.samples), (given.padded[place], *made.padded)
    with tempfile.TemporaryDirectory(prefix="probe-", dir=request.out.parent, ignore_cleanup_errors=True) as work:
        found = probe(
            request.inputs["model"].folder / MODEL,
            padded,
            params.target,
            Path(work),
            threshold_db=least,
            most_compiles=MOST_COMPILES,
            judged=[(), *(judged for _ in made.samples)],
        )
    rows, sample, feeds = found.rows, samples[found.place], padded[found.place]
    if found.got:
        write_worst(request.out, feeds, found.expected, found.got)
    wrong = first_wrong(rows, least)
    model = request.inputs["model"].folder / MODEL
    lost_db = lost_by_inputs(model, feeds, found.expected, found.got) if found.got else None
    inputs_db = lost_db if lost_db is not None and (wrong or lost_db < asked) else None
    edge_db = None
    if states and inputs_db is not None and inputs_db < params.state_db:
        left_db = round(left_at_the_edge_db(shaped / MODEL, given.padded[:_MOST_ROUNDED], states), 1)
        edge_db = left_db if left_db < params.state_db else None
    told = [
        *(row.line() for row in rows),
        f"{sample.name}: {len(wrong)} of {len(rows)} values are the first under {least:g} dB",
        *([f"inputs rounded to float16 leave {inputs_db:g} dB, all else in float32"] if inputs_db is not None else []),
        *([f"rounded in any way that a chip takes it, an input leaves {edge_db:g} dB of a state"] if edge_db else []),
    ]
    text = "\n".join(told) + "\n"
    print(text, end="")
    (request.out / "report.txt").write_text(text, "utf-8", newline="\n")
    named = {"compile": tuple(row.facts() for row in wrong)}
    whole = [row.value for row in wrong if row.reason and row.reason.name == OF_INTEGERS]
    ends, starts = _around(request, index, whole) if whole else ((), ())
    facts = Facts(
        sample.name, values=len(rows), first_wrong=named, inputs_db=inputs_db, edge_db=edge_db, ends=ends or None,
        starts=starts or None, choices=_choices(request, index) if inputs_db is not None else None,
    )  # fmt: skip
    return StageResult(facts.to_json())


def _around(request: StageRequest, index: GraphIndex, whole: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The values at which the model may end before whole numbers go wrong, and those where the rest may begin.

    Both are empty if the model's file does not have them. In place of a value that a rewrite made, the next values
    behind it that the model of `index` has are taken.
    """
    compiled = request.inputs["model"].folder
    behind = GraphIndex(load_graph(compiled / MODEL), compiled)
    waiting, known = [*whole], dict[str, None]()
    for name in waiting:
        if name in index.makers:
            known[name] = None
        else:
            made = [each for node in behind.readers.get(name, []) for each in node.output]
            waiting += [each for each in made if each not in waiting]
    if not known:
        return (), ()
    starts = handed_on(index, [*known])
    ends = ends_before(index.model.graph, index.makers[next(iter(known))], index.initializers)
    given = _made_by_the_file(request)
    return tuple(ends) if given.issuperset(ends) else (), tuple(starts) if given.issuperset(starts) else ()


def _choices(request: StageRequest, index: GraphIndex) -> tuple[str, ...] | None:
    """The values of the file at which the model may end before its TopK and the like; None if it has none of these."""
    choosing = [node for node in index.model.graph.node if is_op(node, "TopK", "NonMaxSuppression")]
    if not choosing:
        return None
    ends = ends_before(index.model.graph, choosing, index.initializers)
    return tuple(ends) if _made_by_the_file(request).issuperset(ends) else ()


def _made_by_the_file(request: StageRequest) -> set[str]:
    return {name for node in load_graph(request.inputs["ingest"].folder / MODEL).graph.node for name in node.output}


def _quieter(heard: Sequence[str], params: Params, sample: ScoredSample, inputs: Sequence[TensorSpec]) -> HeldOut:
    """Variants of a sample, fading and quieter, if a logarithm is taken of what scales with inputs."""
    return fed([each for each in quieter([sample], heard) if not is_silent(each, heard)], params, inputs)


def _worst(request: StageRequest, given: HeldOut, least_db: float) -> int:
    """The place of the sample with the worst output on the emulator.

    If that isn't known, of the sample that rounded inputs harm most, if that is below `least_db`; else of the loudest.
    """
    samples = given.samples
    if "emulate" not in request.inputs:
        left = rounded_db(request.inputs["model"].folder / MODEL, given.padded[:_MOST_ROUNDED])
        if min(left) < least_db:
            return left.index(min(left))
        floats = [name for name, array in samples[0].inputs.items() if array.dtype.kind == "f"]
        loudest = loudest_of(samples, floats)
        return next((place for place, sample in enumerate(samples) if loudest and sample is loudest[0]), 0)
    measured = emulate.Facts.from_json(request.inputs["emulate"].facts).rungs.get("compile", {})
    by_figure = sorted(measured.values(), key=lambda each: -math.inf if each.worst_db is None else each.worst_db)
    worst = by_figure[0].worst_sample if by_figure else ""
    return next((place for place, sample in enumerate(samples) if sample.name == worst), 0)
