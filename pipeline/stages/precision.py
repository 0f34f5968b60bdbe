"""precision: search for the cheapest quantization of a component that keeps to its thresholds.

Some samples show what each choice costs in dB (:mod:`pipeline.graph.accuracy.search.sensitivity`), which puts the
choices in order. Other samples judge the choices, on the CPU and, if that is good enough, on the emulator. All are of
the calibration set. Rounding is tried with the rest of that set, as its error looks too small on samples that it was
fitted to, above all with few bits. What is found still has to pass verification, on samples that this stage did not
see.

Inputs: ``ingest``, ``samples``, ``calibrate``, ``correlate``, ``shape/<bucket>`` and ``rewrite/<bucket>`` for every
bucket. Output: ``precision.json``, a :class:`pipeline.contracts.precision.Found`; ``quantization.yaml``, the same to
put into a configuration.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pipeline.contracts import ingest
from pipeline.contracts.precision import CurvePoint, Facts, Found, Params
from pipeline.errors import QuantizationError
from pipeline.graph.accuracy.figures.choices import chosen_outputs, values_of
from pipeline.graph.accuracy.figures.output_structure import makeup_of_outputs
from pipeline.graph.accuracy.figures.subjects import choose
from pipeline.graph.accuracy.figures.whole_outputs import without_whole
from pipeline.graph.accuracy.search.candidates import Candidates, in_float, settled
from pipeline.graph.accuracy.search.pricing import Pricing
from pipeline.graph.accuracy.search.scheme_yaml import label, scheme_of
from pipeline.graph.accuracy.search.search import MARGIN_DB, SEEN_MARGIN_DB, Search, SearchLimits, Trial
from pipeline.graph.accuracy.search.sensitivity import Choice, Feed, Trials, load_trials
from pipeline.graph.cpu import load_session
from pipeline.graph.cpu import run as run_model
from pipeline.graph.files.model_file import MODEL, load_graph
from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.quantization.calibration.ranges import read_ranges
from pipeline.graph.quantization.scheme_text import as_yaml
from pipeline.graph.quantization.weights.correlations import Correlations
from pipeline.graph.shapes.buckets import pad
from pipeline.inputs.samples.sample_set import StoredCall, calibration_calls, place
from pipeline.model import Json, StageRequest, StageResult
from pipeline.qnn.running.judge import Case, Device, EmulatorJudge, Example, on_cpu
from pipeline.qnn.target import BLOCKS_HTP_ARCH, FLOAT16_HTP_ARCH

_RANKING = 2
"""How many samples put the choices in order."""
_JUDGING = 8
"""How many samples judge a choice in the bucket that has most to go by; every other bucket has half as many."""


def run(request: StageRequest) -> StageResult:
    """Search, and write down what was found.

    Raises:
        QuantizationError: the float model, padded, is further off than allowed.
        CalibrationError: a sample fits no bucket, or there is none.
    """
    params = Params.from_json(request.params)
    component = params.component
    calls = calibration_calls(request.inputs["samples"].folder, params.component, params.part)
    unseen = all(call.is_searched for call in calls)
    ranking, cases = _samples(params, request, calls)
    total_db = max(params.total_db, params.quantization_db)
    margin_db = MARGIN_DB if unseen else SEEN_MARGIN_DB
    limits = SearchLimits(total_db, params.compile_db, params.max_trials, params.max_emulations, margin_db)
    _check_float(cases[0], limits, component)
    ranges = read_ranges(request.inputs["calibrate"].folder / "ranges.json")
    correlations = Correlations(request.inputs["correlate"].folder)
    # What the target can do that can do least, all can.
    oldest = min(params.targets, key=lambda target: (target.htp_arch, target.soc_model))
    trials = load_trials(
        cases[0].folder / MODEL,
        ranges,
        correlations,
        wide_products=params.wide_products,
        blocks=oldest.htp_arch >= BLOCKS_HTP_ARCH,
    )
    pricing = Pricing(trials, params.prefer)
    device = Device(oldest, params.max_cpu_nodes, params.max_partitions)
    with tempfile.TemporaryDirectory(dir=request.out.parent, ignore_cleanup_errors=True) as work:
        judge = EmulatorJudge(
            cases, ranges, trials, lambda choice: scheme_of(choice, trials), device, Path(work), correlations
        )
        search = Search(judge, limits, lambda choice: settled(choice, pricing), pricing.relative)
        fp16 = params.fp16 and oldest.htp_arch >= FLOAT16_HTP_ARCH
        found = _search(search, trials, pricing, [example.feed for example in ranking], fp16=fp16)
    curve = sorted(search.trials.values(), key=lambda trial: pricing.relative(trial.choice))
    table = _table(curve, found, trials, pricing)
    print(table)
    if found is None:
        found = search.measure(Choice())
        print(f"nothing that was tried keeps to {limits.total_db:g} dB on these samples: the gates judge w8a16")
    scheme = scheme_of(found.choice, trials)
    calibration: dict[str, Json] = {"method": params.method}
    if params.percentile is not None:
        calibration["percentile"] = params.percentile
    points = tuple(_point(trial, trials, pricing) for trial in curve)
    written = json.dumps(Found(scheme, points).to_json(), indent=1)
    (request.out / "precision.json").write_text(f"{written}\n", "utf-8", newline="\n")
    (request.out / "report.txt").write_text(f"{table}\n", "utf-8", newline="\n")
    (request.out / "quantization.yaml").write_text(as_yaml(scheme, component, calibration), "utf-8", newline="\n")
    emulations = sum(trial.emulation is not None for trial in curve)
    chosen = _point(found, trials, pricing)
    facts = Facts(
        **vars(chosen), scheme=scheme.name, quantization=scheme, curve=points, trials=len(curve),
        emulations=emulations,
    )  # fmt: skip
    return StageResult(facts.to_json())


def _search(search: Search, trials: Trials, pricing: Pricing, feeds: Sequence[Feed], *, fp16: bool) -> Trial | None:
    """The cheapest choice that passes; one with float only if no other does. None if none passes."""
    search.measure(Choice(frozenset(range(len(trials.groups)))))
    reference = search.measure(Choice())
    ordered = Candidates(trials, trials.sensitivity(feeds), pricing).up_to(reference.rounded_db)
    # What HTP computes badly needs float, so some emulations are kept for that.
    found = search.first(ordered, spare=search.emulations_left // 3 if fp16 else 0)
    if found is None and fp16:
        found = search.first(list(in_float(trials.exact_gains(feeds), pricing)))
    return found


def _samples(
    params: Params, request: StageRequest, calls: Sequence[StoredCall]
) -> tuple[Sequence[Example], list[Case]]:
    """The examples that order choices, and those that judge them by bucket, the one with most to go by first."""
    inputs = ingest.Facts.from_json(request.inputs["ingest"].facts).inputs
    buckets = params.buckets
    placed = {bucket: own for bucket, own in place(calls, inputs, buckets).items() if own}
    # The smallest bucket runs fastest; one with hardly a sample would decide by chance.
    size = {bucket: math.prod(axes.values()) for bucket, axes in buckets.items()}
    main = min(placed, key=lambda bucket: (-min(len(placed[bucket]), _RANKING), size[bucket]))
    folder = request.inputs["ingest"].folder
    original = load_session(folder / MODEL)
    choices = chosen_outputs(GraphIndex(load_graph(folder / MODEL), folder))
    chosen_from = [of.value for of in choices.values()]

    def example(call: StoredCall, bucket: str) -> Example:
        arrays = call.load()
        truth = run_model(original, arrays)
        shapes = tuple(array.shape for array in truth.values())
        feed = Feed(pad(arrays, inputs, buckets[bucket], params.padding), shapes)
        return Example(call.name, feed, truth, values_of(folder / MODEL, chosen_from, [arrays])[0])

    def case(bucket: str, calls: Sequence[StoredCall]) -> Case:
        """The bucket with what `verify` would judge of it."""
        shaped = request.inputs[f"shape/{bucket}"].folder
        makeup = makeup_of_outputs(GraphIndex(load_graph(shaped / MODEL), shaped))
        examples = tuple(example(call, bucket) for call in calls)
        makeup = without_whole(makeup, shaped / MODEL, [each.feed.inputs for each in examples])
        subjects = choose(
            [each.truth for each in examples],
            makeup,
            params.outputs,
            f"outputs of component {params.component!r}",
            choices=choices,
            chosen_from=[each.chosen_from for each in examples],
        )
        return Case(bucket, request.inputs[f"rewrite/{bucket}"].folder, examples, subjects)

    ranking = _spread(placed[main], min(_RANKING, max(1, len(placed[main]) // 2)))
    rest = [call for call in placed[main] if call not in ranking] or ranking
    chosen = {main: _spread(rest, _JUDGING)}
    chosen |= {bucket: _spread(placed[bucket], _JUDGING // 2) for bucket in buckets if bucket in placed.keys() - {main}}
    return [example(call, main) for call in ranking], [case(bucket, calls) for bucket, calls in chosen.items()]


def _spread(calls: Sequence[StoredCall], count: int) -> list[StoredCall]:
    """`count` of the calls, evenly spread over them."""
    count = min(count, len(calls))
    return [calls[number * len(calls) // count] for number in range(count)]


def _check_float(case: Case, limits: SearchLimits, component: str) -> None:
    """Refuse to search where the float model, padded to the bucket, is further off than allowed."""
    outputs = on_cpu(case.folder, case.examples, "rewrite")
    reached = case.least_db(outputs)
    if reached < limits.total_db:
        raise QuantizationError(
            f"no precision of component {component!r} can keep to {limits.total_db:g} dB",
            where=f"bucket {case.bucket}, {len(case.examples)} calibration samples",
            why=f"its float model, padded to the bucket, is {reached:.1f} dB from the original",
            remedy="build the exact lengths that are used as buckets, or lower thresholds.total_db",
        )


def _point(trial: Trial, trials: Trials, pricing: Pricing) -> CurvePoint:
    """A trial as a point of the curve. `rounded`: `db_cpu` is of the rounded float model, not of the QDQ model."""
    price = pricing.price(trial.choice)
    emulation = trial.emulation
    return CurvePoint(
        label=label(trial.choice, trials),
        weight_bytes=price.weight_bytes,
        share_8bit=round(price.share_8bit, 4),
        cost=round(pricing.relative(trial.choice), 4),
        db_cpu=_finite(trial.cpu_db),
        rounded=trial.quantized_db is None,
        db_emulator=_finite(emulation.total_db) if emulation and not emulation.failure else None,
        failure=emulation.failure if emulation else "",
    )


def _finite(value: float) -> float | None:
    return round(value, 2) if math.isfinite(value) else None


def _table(curve: Sequence[Trial], found: Trial | None, trials: Trials, pricing: Pricing) -> str:
    """The curve as text, the cheapest first. Costs are relative to that of w8a16."""
    lines = [f"{'cost':>6}  {'weights':>9}  {'8 bit ops':>9}  {'CPU':>8}  {'emulator':>8}"]
    for trial in curve:
        point = _point(trial, trials, pricing)
        emulated = "failed" if point.failure else _shown(point.db_emulator)
        weights = f"{point.weight_bytes / 1e6:.2f} MB"
        lines.append(
            f"{point.cost:6.3f}  {weights:>9}  {point.share_8bit:9.1%}  {_shown(point.db_cpu):>8}"
            f"  {emulated:>8}"
            f"  {point.label}{'  <- chosen' if found and trial.choice == found.choice else ''}"
        )
    return "\n".join(lines)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} dB"
