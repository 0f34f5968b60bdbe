"""How many samples of each bucket are emulated: one budget for a component and target, shared by its buckets.

All buckets have the same weights and encodings, so what one shows is mostly shown of all. The count follows from an
estimate and from figures, never from a clock: equal inputs give equal counts on every machine (ADR 68).
"""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.contracts.limits import WORST_BELOW_DB, few_db
from pipeline.contracts.measures import Figures, Measured
from pipeline.contracts.verify import Basis

SMALL_S = 0.25
"""A bucket whose sample takes less is small: it has a budget of its own, and nearly all have all their samples run."""
FIRST_SHARE = 0.5
"""The part of the budget that large buckets share before one is in doubt; a larger part found nothing more (ADR 68)."""
_MOST_TIMES = 2
"""The budget of a small bucket, of a large one in doubt, and of a component in float, by that of the component.

In float, the CPU has no figure that tells which samples are the worst, so a few say less.
"""
_DOUBT_DB, _LEAST_DOUBT_DB = 30.0, 24.0
"""Where nothing is wrong, the context's rung keeps more than the first, or hardly loses more than quantization did.

A figure below the second is near a gate.
"""
_GATE_DB = 20.0
"""The default threshold of the rung, when all samples are run."""
_DOUBT_OUTSIDE = 0.25
"""Widths of the range by which a value may lie outside of it where nothing is wrong."""
_TWICE_DB = 6.0
"""An error twice as large."""
_SPENT_TWICE = 2
"""How often the first sample of a bucket is run: the second time without ONNX Runtime, as a second opinion."""


def shares(buckets: Mapping[str, Basis], seconds: float, *, in_float: bool = False) -> dict[str, int]:
    """How many samples of each bucket to emulate, of those it has: one at least, whatever it takes.

    All of them, if all large buckets together fit into `seconds`; else half of it is for these together, or twice for a
    component `in_float`, the second opinion of each included, and whoever has spent least goes on. Each small bucket
    has twice `seconds` for itself.
    """
    found = {name: min(each.samples, 1) for name, each in buckets.items()}
    large = {name: each for name, each in buckets.items() if each.samples and each.sample_s >= SMALL_S}
    found |= {name: most_in_doubt(each, seconds) for name, each in buckets.items() if each.sample_s < SMALL_S}
    all_s = sum((each.samples + _SPENT_TWICE - 1) * each.sample_s for each in large.values())
    most_s = seconds * (_MOST_TIMES if in_float else 1 if all_s <= seconds else FIRST_SHARE)
    left = most_s - sum(_SPENT_TWICE * each.sample_s for each in large.values())
    while fitting := [name for name, each in large.items() if found[name] < each.samples and each.sample_s <= left]:
        name = min(fitting, key=lambda name: (found[name] * large[name].sample_s, name))
        found[name] += 1
        left -= large[name].sample_s
    return found


def is_doubtful(rung: Measured, quantization: Measured, samples: int, of: int) -> bool:
    """Whether the `samples` of `of` that were emulated are a reason to emulate more: much is lost between CPU and HTP.

    Much is more than 30 dB leave, and twice the error that `quantization` made, or more than gates allow so few; a
    sample may lose 10 dB more.
    """
    near = max(_LEAST_DOUBT_DB, _GATE_DB + few_db(samples, of))
    return any(_loses_much(figures, _db(quantization, label), near) for label, figures in rung.items())


def _loses_much(figures: Figures, quantization_db: float | None, near: float) -> bool:
    least = _DOUBT_DB if quantization_db is None else quantization_db - _TWICE_DB
    least = min(_DOUBT_DB, max(near, least))
    worst = least - WORST_BELOW_DB
    outlier = figures.outlier
    if outlier is not None and (outlier.times is None or outlier.times > _DOUBT_OUTSIDE):
        return True
    return any(db is None or db < asked for db, asked in ((figures.sqnr_db, least), (figures.worst_db, worst)))


def most_in_doubt(bucket: Basis, seconds: float) -> int:
    """How many samples of a bucket are emulated if the first ones are a reason for doubt, or if it is small."""
    if not bucket.sample_s:
        return bucket.samples
    return min(bucket.samples, max(1, int(_MOST_TIMES * seconds / bucket.sample_s) - 1))


def quiet_count(samples: int, sample_s: float, seconds: float) -> int:
    """How many quieter samples are emulated: what half of the budget pays for, one at least, the worst on the CPU."""
    return samples if not sample_s else min(samples, max(1, int(seconds / 2 / sample_s)))


def _db(outputs: Measured, label: str) -> float | None:
    return outputs[label].sqnr_db if label in outputs else None
