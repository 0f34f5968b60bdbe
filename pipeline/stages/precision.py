"""precision: search for the cheapest quantization of a component that keeps to its thresholds.

What each choice costs in dB is measured on some samples (:mod:`pipeline.graph.sensitivity`), which puts the choices in
order; others judge them, on the CPU and, where that is good enough, on the emulator. All are of the calibration set:
verification has yet to be passed, on samples that this did not see.

Inputs: ``ingest``, ``samples``, ``calibrate``, ``rewrite/<bucket>`` for every bucket. Params: ``component``,
``buckets``, ``padding``, ``part`` (of the samples), ``total_db``, ``quantization_db`` and ``compile_db`` (thresholds),
``max_cpu_nodes``, ``max_partitions``, ``targets`` (soc_model, htp_arch, vtcm_mb of each; the lowest architecture is
emulated), ``fp16`` (whether nodes may stay in float), ``wide_products`` (as in a scheme; optional), ``max_trials``,
``max_emulations`` (0: the CPU decides), and for the record calibrate's ``method`` and ``percentile``. Output:
``precision.json``, the scheme as the quantize stage takes it; ``quantization.yaml``, the same to put into a
configuration. Facts: ``scheme``, ``curve`` (what was tried, from cheap to dear), the point of it that was chosen,
``trials``, ``emulations``.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from pipeline.errors import QuantizationError
from pipeline.graph.buckets import axis_lengths, fits_no_bucket, model_inputs, pad, smallest_bucket
from pipeline.graph.candidates import Candidates, in_float, settled
from pipeline.graph.cpu import load_session
from pipeline.graph.cpu import run as run_model
from pipeline.graph.encodings import read_ranges
from pipeline.graph.explicit import as_yaml, label, scheme_of
from pipeline.graph.model_file import MODEL
from pipeline.graph.pricing import Pricing
from pipeline.graph.search import Limits, Search, Trial
from pipeline.graph.sensitivity import Choice, Feed, Trials, load_trials
from pipeline.model import Json, StageRequest, StageResult
from pipeline.qnn.judge import Case, Device, Example, Judge, least_db, on_cpu
from pipeline.qnn.target import FLOAT16_HTP_ARCH, HtpTarget
from pipeline.readers.sample_set import StoredCall, calibration_calls

_RANKING = 2
"""Samples that choices are put in order by."""
_JUDGING = 8
"""Samples of the bucket that choices are judged on; of every other bucket, half as many."""


def run(request: StageRequest) -> StageResult:
    """Search, and write down what was found.

    Raises:
        QuantizationError: nothing that was tried keeps to the thresholds.
        CalibrationError: a sample fits no bucket, or there is none.
    """
    component = str(request.params["component"])
    ranking, cases = _samples(request)
    limits = _limits(request.params)
    _check_float(cases[0], limits, component)
    ranges = read_ranges(request.inputs["calibrate"].folder / "ranges.json")
    wide_products = bool(request.params.get("wide_products"))
    trials = load_trials(cases[0].folder / MODEL, ranges, wide_products=wide_products)
    pricing = Pricing(trials)
    targets = _targets(request.params)
    device = Device(targets[0], _integer(request.params, "max_cpu_nodes"), _integer(request.params, "max_partitions"))
    with tempfile.TemporaryDirectory(dir=request.out.parent, ignore_cleanup_errors=True) as work:
        judge = Judge(cases, ranges, trials, lambda choice: scheme_of(choice, trials), device, Path(work))
        search = Search(judge, limits, lambda choice: settled(choice, pricing), pricing.relative)
        fp16 = bool(request.params["fp16"]) and targets[0].htp_arch >= FLOAT16_HTP_ARCH
        found = _search(search, trials, pricing, [example.feed for example in ranking], fp16=fp16)
    curve = sorted(search.trials.values(), key=lambda trial: pricing.relative(trial.choice))
    table = _table(curve, found, trials, pricing)
    print(table)
    if found is None:
        raise _nothing_passes(component, cases[0], limits, curve, trials, fp16=fp16)
    scheme = scheme_of(found.choice, trials)
    calibration = {key: request.params[key] for key in ("method", "percentile") if key in request.params}
    points: list[Json] = [_point(trial, trials, pricing) for trial in curve]
    written = {**scheme.to_json(), "curve": points}
    (request.out / "precision.json").write_text(json.dumps(written, indent=1) + "\n", "utf-8", newline="\n")
    (request.out / "report.txt").write_text(f"{table}\n", "utf-8", newline="\n")
    (request.out / "quantization.yaml").write_text(as_yaml(scheme, component, calibration), "utf-8", newline="\n")
    emulations = sum(trial.emulation is not None for trial in curve)
    chosen = {"scheme": scheme.name, **_point(found, trials, pricing)}
    return StageResult({**chosen, "curve": points, "trials": len(curve), "emulations": emulations})


def _search(search: Search, trials: Trials, pricing: Pricing, feeds: Sequence[Feed], *, fp16: bool) -> Trial | None:
    """The cheapest that passes, first of all without float."""
    search.measure(Choice(frozenset(range(len(trials.groups)))))
    reference = search.measure(Choice())
    ordered = Candidates(trials, trials.sensitivity(feeds), pricing).up_to(reference.rounded_db)
    # What HTP computes badly needs float, so some emulations are kept for that.
    found = search.first(ordered, spare=search.emulations_left // 3 if fp16 else 0)
    if found is None and fp16:
        found = search.first(list(in_float(trials.exact_gains(feeds), pricing)))
    return found


def _samples(request: StageRequest) -> tuple[Sequence[Example], list[Case]]:
    """Examples to order choices by, and those to judge them on: by bucket, the one with most to go by first."""
    component = str(request.params["component"])
    inputs = model_inputs(request.inputs["ingest"].facts)
    buckets = cast("Mapping[str, Mapping[str, int]]", request.params["buckets"])
    placed: dict[str, list[StoredCall]] = {}
    for call in calibration_calls(request.inputs["samples"].folder, component, str(request.params["part"])):
        lengths = axis_lengths(call.load(), inputs)
        bucket = smallest_bucket(lengths, buckets)
        if bucket is None:
            raise fits_no_bucket(call.name, lengths, buckets)
        placed.setdefault(bucket, []).append(call)
    # The smallest bucket runs fastest; one with hardly a sample would decide by chance.
    size = {bucket: math.prod(axes.values()) for bucket, axes in buckets.items()}
    main = min(placed, key=lambda bucket: (-min(len(placed[bucket]), _RANKING), size[bucket]))
    original = load_session(request.inputs["ingest"].folder / MODEL)
    rules = cast("Mapping[str, float]", request.params["padding"])

    def example(call: StoredCall, bucket: str) -> Example:
        arrays = call.load()
        truth = run_model(original, arrays)
        shapes = tuple(array.shape for array in truth.values())
        return Example(call.name, Feed(pad(arrays, inputs, buckets[bucket], rules), shapes), truth)

    ranking = _spread(placed[main], min(_RANKING, max(1, len(placed[main]) // 2)))
    rest = [call for call in placed[main] if call not in ranking] or ranking
    chosen = {main: _spread(rest, _JUDGING)}
    chosen |= {bucket: _spread(placed[bucket], _JUDGING // 2) for bucket in buckets if bucket in placed.keys() - {main}}
    cases = [
        Case(bucket, request.inputs[f"rewrite/{bucket}"].folder, tuple(example(call, bucket) for call in calls))
        for bucket, calls in chosen.items()
    ]
    return [example(call, main) for call in ranking], cases


def _spread(calls: Sequence[StoredCall], count: int) -> list[StoredCall]:
    """So many of the calls, evenly spread over them."""
    count = min(count, len(calls))
    return [calls[number * len(calls) // count] for number in range(count)]


def _limits(params: Mapping[str, Json]) -> Limits:
    total_db = max(_number(params, "total_db"), _number(params, "quantization_db"))
    return Limits(
        total_db, _number(params, "compile_db"), _integer(params, "max_trials"), _integer(params, "max_emulations")
    )


def _targets(params: Mapping[str, Json]) -> list[HtpTarget]:
    """All targets, the one that can do least first."""
    targets = map(HtpTarget.from_json, cast("Sequence[Mapping[str, Json]]", params["targets"]))
    return sorted(targets, key=lambda target: (target.htp_arch, target.soc_model))


def _check_float(case: Case, limits: Limits, component: str) -> None:
    """Refuse to search where the float model, padded to the bucket, is further off than allowed."""
    outputs = on_cpu(case.folder, case.examples, "rewrite")
    reached = least_db([example.truth for example in case.examples], outputs)
    if reached < limits.total_db:
        raise QuantizationError(
            f"no precision of component {component!r} can keep to {limits.total_db:g} dB",
            where=f"bucket {case.bucket}, {len(case.examples)} calibration samples",
            why=f"its float model, padded to the bucket, is {reached:.1f} dB from the original",
            remedy="build the exact lengths that are used as buckets, or lower thresholds.total_db",
        )


def _nothing_passes(
    component: str, case: Case, limits: Limits, curve: Sequence[Trial], trials: Trials, *, fp16: bool
) -> QuantizationError:
    best = max(curve, key=lambda trial: (trial.emulation is not None, trial.cpu_db))
    reached = f"the best of {len(curve)} that were tried, {label(best.choice, trials)}, has {best.cpu_db:.1f} dB"
    if best.emulation is None:
        why = f"{reached} on the CPU"
    elif best.emulation.failure:
        why = f"{reached} on the CPU, and can't be emulated: {best.emulation.failure}"
    else:
        why = (
            f"{reached} on the CPU and {best.emulation.total_db:.1f} dB on the emulator,"
            f" where the two are {best.emulation.compile_db:.1f} dB apart"
        )
    remedies = ["lower thresholds.total_db", "calibrate with more typical samples"]
    if not fp16:
        remedies.append("let layers stay in float (fp16: true, targets of HTP v73 and later)")
    if len(curve) >= limits.max_trials:
        remedies.append("raise max_trials")
    if 0 < limits.max_emulations <= sum(trial.emulation is not None for trial in curve):
        remedies.append("raise max_emulations")
    return QuantizationError(
        f"no quantization of component {component!r} keeps to {limits.total_db:g} dB",
        where=f"bucket {case.bucket}, {len(case.examples)} calibration samples",
        why=why,
        remedy=f"{', '.join(remedies[:-1])}, or {remedies[-1]}",
    )


def _point(trial: Trial, trials: Trials, pricing: Pricing) -> dict[str, Json]:
    """A trial as a point of the curve. `db_cpu` is of the QDQ model, or `rounded` of the float model instead."""
    price = pricing.price(trial.choice)
    emulation = trial.emulation
    return {
        "label": label(trial.choice, trials),
        "weight_bytes": price.weight_bytes,
        "share_8bit": round(price.share_8bit, 4),
        "cost": round(pricing.relative(trial.choice), 4),
        "db_cpu": _finite(trial.cpu_db),
        "rounded": trial.quantized_db is None,
        "db_emulator": _finite(emulation.total_db) if emulation and not emulation.failure else None,
        "failure": emulation.failure if emulation else "",
    }


def _finite(value: float) -> float | None:
    return round(value, 2) if math.isfinite(value) else None


def _table(curve: Sequence[Trial], found: Trial | None, trials: Trials, pricing: Pricing) -> str:
    """The curve as text, from cheap to dear; the cost is over that of w8a16."""
    lines = [f"{'cost':>6}  {'weights':>9}  {'8 bit ops':>9}  {'CPU':>8}  {'emulator':>8}"]
    for trial in curve:
        point = _point(trial, trials, pricing)
        emulated = "failed" if point["failure"] else _shown(point["db_emulator"])
        weights = f"{_number(point, 'weight_bytes') / 1e6:.2f} MB"
        lines.append(
            f"{point['cost']:6.3f}  {weights:>9}  {point['share_8bit']:9.1%}  {_shown(point['db_cpu']):>8}"
            f"  {emulated:>8}"
            f"  {point['label']}{'  <- chosen' if found and trial.choice == found.choice else ''}"
        )
    return "\n".join(lines)


def _shown(value: Json) -> str:
    return f"{value:.1f} dB" if isinstance(value, float) else "-"


def _number(params: Mapping[str, Json], name: str) -> float:
    value = params[name]
    assert isinstance(value, float | int)
    return float(value)


def _integer(params: Mapping[str, Json], name: str) -> int:
    value = params[name]
    assert isinstance(value, int)
    return value
