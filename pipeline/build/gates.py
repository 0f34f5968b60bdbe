"""What a build may not ship: outputs that miss a threshold of the accuracy ladder, and nodes left to the CPU.

Stages measure and report facts; whether the facts are good enough is decided here, again in every build. So a threshold
can be changed without measuring again, and a miss fails the build for as long as it is there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from pipeline.errors import VerificationError
from pipeline.model import PARTS, Json
from pipeline.qnn import hints
from pipeline.thresholds import RUNGS, Thresholds

Measured = Mapping[str, Mapping[str, Json]]
"""Figures of :meth:`pipeline.graph.accuracy.Accuracy.facts` by output."""

NOISE_DB = 10.0
"""Below this, an error is a third of the signal: nobody is advised to accept that."""

_CAUSES: Mapping[str, tuple[str, str]] = {
    "padding": (
        "the padded tail reaches into the valid part: a norm, a mean, a softmax or a recurrence over the length without"
        " a mask",
        "export the model with a mask input, build the exact lengths that are used as buckets",
    ),
    "rewrite": (
        "a rewrite for HTP changed what the model computes",
        "report it with the model; the manifest lists the rewrites that were applied",
    ),
    "quantization": (
        "rounding to the encodings loses too much",
        "keep what {blame} ranks first in 16 bits or fp16 under quantization.overrides, calibrate with more or more"
        " typical samples, let {{precision: auto}} choose, or use {{precision: fp16}}",
    ),
    "compile": (
        "HTP computes a node with less accuracy than onnxruntime's CPU does",
        "keep what is named above in float with quantization.overrides: [{{nodes: [...], precision: fp16}}], or use"
        " {{precision: fp16}}",
    ),
    "total": (
        "the errors of all rungs add up to too much",
        "raise the precision of what {blame} ranks first under quantization.overrides, or let {{precision: auto}}"
        " choose",
    ),
}


@dataclass(frozen=True)
class Miss:
    """Why a step's output may not ship; `rung` is the one of the ladder that it misses, if it is one."""

    error: VerificationError
    rung: str = ""


def check(stage: str, name: str, facts: Mapping[str, Json], thresholds: Thresholds) -> Miss | None:
    """The first reason why the output of a step may not ship; `name` is the step's, as `minilm/encoder/64`."""
    if stage in ("verify", "emulate"):
        return next(_misses(name, facts, thresholds), None)
    if stage == "context":
        parts = cast("Mapping[str, Mapping[str, Mapping[str, Json]]]", facts[PARTS])
        missed = (error for part in parts.values() for error in _fallbacks(part["facts"], thresholds))
        return next(map(Miss, missed), None)
    return None


def _misses(name: str, facts: Mapping[str, Json], thresholds: Thresholds) -> Iterator[Miss]:
    rungs = cast("Mapping[str, Measured]", facts["rungs"])
    outputs = cast("Measured", facts["outputs"])
    for rung in RUNGS:
        if rung in rungs and (missed := _worst(rungs[rung], thresholds.of(rung))):
            yield _miss(name, rung, missed, rungs[rung], facts, thresholds)
    if missed := _worst(outputs, thresholds.total_db):
        yield _miss(name, "total", missed, outputs, facts, thresholds)
    if thresholds.cosine is not None:
        for output, figures in outputs.items():
            cosine = figures["cosine"]
            if not isinstance(cosine, float | int) or cosine < thresholds.cosine:
                error = VerificationError(
                    f"output {output!r} points elsewhere than the original's: cosine {cosine}, not {thresholds.cosine}",
                    where=_where(name, figures, facts),
                    remedy="raise the precision, or lower thresholds.cosine",
                )
                yield Miss(error, "total")
    if "of" not in facts:  # on the few samples that are emulated, one label may be a tenth of the score
        yield from map(Miss, _score_changed(name, facts, thresholds))


def _worst(measured: Measured, least: float) -> str | None:
    """The output that is furthest below `least` dB, or without any figure; None if none is."""
    figures = {output: found["sqnr_db"] for output, found in measured.items()}
    missed = {output: value for output, value in figures.items() if not isinstance(value, float | int) or value < least}
    return min(
        missed, key=lambda output: value if isinstance(value := missed[output], float | int) else -1e9, default=None
    )


def _miss(
    name: str, rung: str, output: str, measured: Measured, facts: Mapping[str, Json], thresholds: Thresholds
) -> Miss:
    figures, least = measured[output], _least(rung, thresholds)
    found = _shown(figures["sqnr_db"])
    against = "the original model" if rung in ("padding", "total") else "the rung above"
    cause, remedy = _CAUSES[rung]
    blame = f"'doit blame:{'/'.join(name.split('/')[:3])}'"
    what = "the whole ladder" if rung == "total" else f"the {rung} rung"
    error = VerificationError(
        f"{what} misses its threshold: output {output!r} is {found} against {against}, {least:g} dB are asked for",
        where=_where(name, figures, facts),
        why=cause,
        remedy=remedy.format(blame=blame) + _acceptable(facts, thresholds),
    )
    return Miss(error, rung)


def _least(rung: str, thresholds: Thresholds) -> float:
    return thresholds.total_db if rung == "total" else thresholds.of(rung)


def _acceptable(facts: Mapping[str, Json], thresholds: Thresholds) -> str:
    """How to accept this output: the thresholds that it keeps to. Nothing for one that is noise."""
    rungs = cast("Mapping[str, Measured]", facts["rungs"])
    lowered: dict[str, int] = {}
    for rung, measured in {**rungs, "total": cast("Measured", facts["outputs"])}.items():
        if output := _worst(measured, _least(rung, thresholds)):
            found = measured[output]["sqnr_db"]
            lowered[rung] = math.floor(found) if isinstance(found, float | int) else 0
    if min(lowered.values()) < NOISE_DB:
        return ""
    return f"; or accept it with thresholds: {{{', '.join(f'{rung}_db: {value}' for rung, value in lowered.items())}}}"


def _where(name: str, figures: Mapping[str, Json], facts: Mapping[str, Json]) -> str:
    return f"{name}, worst of {facts['samples']} samples: {figures['worst_sample']} ({_shown(figures['worst_db'])})"


def _shown(sqnr_db: Json) -> str:
    """Rounded down, so that what misses a threshold is never shown as what was asked for."""
    return f"{math.floor(sqnr_db * 10) / 10:.1f} dB" if isinstance(sqnr_db, float | int) else "not a number"


def _score_changed(name: str, facts: Mapping[str, Json], thresholds: Thresholds) -> Iterator[VerificationError]:
    score = facts.get("score")
    if thresholds.score_change is None or not isinstance(score, dict):
        return
    values = {model: value for model, value in score.items() if isinstance(value, float | int)}
    truth = values.pop("fp32")
    for model, value in values.items():
        if abs(value - truth) > thresholds.score_change:
            yield VerificationError(
                f"{score['name']}() is {value:g} for the {model} model and {truth:g} for the original, a change of"
                f" {abs(value - truth):g} where {thresholds.score_change:g} is allowed",
                where=f"{name}, {facts['samples']} samples",
                remedy="raise the precision, or raise thresholds.score_change",
            )


def _fallbacks(facts: Mapping[str, Json], thresholds: Thresholds) -> Iterator[VerificationError]:
    listed = cast("list[Mapping[str, str]]", facts["cpu_nodes"])
    inside = [node for node in listed if not node.get("edge")]
    name = str(facts["context_model"])
    partitions = facts["partitions"]
    assert isinstance(partitions, int)
    told = "".join(
        f"\n    | {node['op']} {node['name']!r}: {node['reason'] or 'no reason given'}" for node in inside[:8]
    )
    if len(inside) > 8:
        told += f"\n    | and {len(inside) - 8} more, which the step's manifest lists"
    advice = "; ".join(dict.fromkeys(hints.of(node["op"], node["reason"]) for node in inside[:8]))
    if len(inside) > thresholds.max_cpu_nodes:
        yield VerificationError(
            f"{_count(len(inside), 'node')} would run on the CPU, {thresholds.max_cpu_nodes} may",
            where=name,
            why=f"QNN did not take{told}",
            remedy=f"{advice}; or accept it with thresholds:"
            f" {{max_cpu_nodes: {len(inside)}, max_partitions: {partitions}}}",
        )
    if partitions > thresholds.max_partitions:
        yield VerificationError(
            f"the model is split into {partitions} partitions, {thresholds.max_partitions} may be",
            where=name,
            why="between partitions, values travel from the NPU to the CPU and back"
            + (told and f"; on the CPU:{told}"),
            remedy=(advice and f"{advice}; or ") + f"accept it with thresholds: {{max_partitions: {partitions}}}",
        )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
