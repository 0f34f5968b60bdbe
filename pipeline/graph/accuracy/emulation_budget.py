"""How many samples of each bucket are emulated: one budget for a component and target, spent where buckets differ.

All buckets have the same weights and encodings, so what one shows is mostly shown of all. The count follows from what
`verify` measured and from an estimate, never from a clock: equal inputs give equal counts on every machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from pipeline.contracts.limits import WORST_BELOW_DB
from pipeline.contracts.measures import Figures, Measured
from pipeline.contracts.verify import Basis

SMALL_S = 0.25
"""A bucket whose sample takes less is small: it has a budget of its own, and nearly all have all their samples run."""
FIRST_SHARE = 0.5
"""What of the budget large buckets share before one of them is in doubt: more of it found nothing more (ADR 59)."""
_SMALL_TIMES = 2
"""The budget of a small bucket, and of a large one in doubt, by that of the component."""
_DOUBT_DB, _LEAST_DOUBT_DB = 30.0, 24.0
"""Where nothing is wrong, the context's rung keeps more than the first, or hardly loses more than quantization did.

What keeps less than the second is near a gate."""
_DOUBT_OUTSIDE = 0.25
"""Widths of the range by which a value may lie outside of it where nothing is wrong."""
_TWICE_DB = 6.0
"""An error twice as large: a bucket that is so far from the others weighs twice as much."""
_UNKNOWN_DB = 60.0
"""How far a bucket is taken to be from the others if one of them has no figure."""
_SPENT_TWICE = 2
"""How often the first sample of a bucket is run: the second time without ONNX Runtime, as a second opinion."""


def shares(buckets: Mapping[str, Basis], seconds: float) -> dict[str, int]:
    """How many samples of each bucket to emulate, of those it has: one at least, whatever it takes.

    Half of `seconds` are for all large buckets together, the second opinion of each included; each small one has twice
    `seconds` for itself. The share of a large bucket is larger the further its figures on the CPU are from those of the
    others.
    """
    found = {name: min(each.samples, 1) for name, each in buckets.items()}
    large: dict[str, Basis] = {}
    for name, each in buckets.items():
        if each.sample_s < SMALL_S:
            found[name] = most_in_doubt(each, seconds)
        elif found[name]:
            large[name] = each
    left = FIRST_SHARE * seconds - sum(_SPENT_TWICE * each.sample_s for each in large.values())
    weights = {name: 1 + far / _TWICE_DB for name, far in differences(buckets).items() if name in large}
    while fitting := [name for name, each in large.items() if found[name] < each.samples and each.sample_s <= left]:
        # Whoever has spent least with one sample more, by its weight.
        name = min(fitting, key=lambda name: (found[name] * large[name].sample_s / weights[name], name))
        found[name] += 1
        left -= large[name].sample_s
    return found


def differences(buckets: Mapping[str, Basis]) -> dict[str, float]:
    """How far the figures of each bucket are from the median of all, in dB; the furthest figure counts."""
    measured = {name: each.outputs for name, each in buckets.items() if each.samples}
    found = dict.fromkeys(buckets, 0.0)
    for label in {label for outputs in measured.values() for label in outputs}:
        known = {name: _db(outputs, label) for name, outputs in measured.items()}
        figures = [value for value in known.values() if value is not None]
        middle = statistics.median(figures) if figures else 0.0
        for name, value in known.items():
            found[name] = max(found[name], _UNKNOWN_DB if value is None else abs(value - middle))
    return {name: round(far, 1) for name, far in found.items()}


def is_doubtful(rung: Measured, quantization: Measured) -> bool:
    """Whether the samples that were emulated are a reason to emulate more: much is lost between CPU and HTP.

    Much is more than 30 dB leave, and twice the error that `quantization` made; a sample may lose 10 dB more.
    """
    return any(_loses_much(figures, _db(quantization, label)) for label, figures in rung.items())


def _loses_much(figures: Figures, quantization_db: float | None) -> bool:
    least = _DOUBT_DB if quantization_db is None else quantization_db - _TWICE_DB
    least = min(_DOUBT_DB, max(_LEAST_DOUBT_DB, least))
    worst = least - WORST_BELOW_DB
    outlier = figures.outlier
    if outlier is not None and (outlier.times is None or outlier.times > _DOUBT_OUTSIDE):
        return True
    return any(db is None or db < asked for db, asked in ((figures.sqnr_db, least), (figures.worst_db, worst)))


def most_in_doubt(bucket: Basis, seconds: float) -> int:
    """How many samples of a bucket are emulated if the first ones are a reason for doubt, or if it is small."""
    if not bucket.sample_s:
        return bucket.samples
    return min(bucket.samples, max(1, int(_SMALL_TIMES * seconds / bucket.sample_s) - 1))


def quiet_count(samples: int, sample_s: float, seconds: float) -> int:
    """How many quieter samples are emulated: what half of the budget pays for, one at least, the worst on the CPU."""
    return samples if not sample_s else min(samples, max(1, int(seconds / 2 / sample_s)))


def _db(outputs: Measured, label: str) -> float | None:
    return outputs[label].sqnr_db if label in outputs else None
