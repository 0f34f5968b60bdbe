"""Whether figures keep to thresholds, and by which figure: the one judgement of builds, searches and reports.

Pure, and imports nothing heavy: builds judge in their own process.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from pipeline.contracts.limits import Limits
from pipeline.contracts.measures import Figures, Measured, Subject

TOTAL = "total"
"""The last rung against the original."""

Kind = Literal["outside", "db", "error", "worst", "cosine", "choices", "flips", "overlap"]

WORST_BELOW = 2.5
"""By how many times more than all together the worst sample may miss a full overlap."""


@dataclass(frozen=True)
class Shortfall:
    """A subject, by its label, that misses what is asked for; `missing` orders them, the largest being the worst.

    What misses is a value `outside` of the original's range, its SQNR (`db`), its largest `error`, its `worst` sample,
    its `cosine`, or what an application reads off it: its `choices`, those of other inputs (`flips`), or its levels'
    `overlap`. `asked` is what is asked for.
    """

    rung: str
    label: str
    kind: Kind
    figures: Figures
    asked: float
    missing: float


def shortfalls(rung: str, measured: Measured, subjects: Mapping[str, Subject], limits: Limits) -> list[Shortfall]:
    """What misses its thresholds on a rung, or in `total`: the worst first, and what lies far outside before all.

    Judged by its error is what a config gives a largest error for. What lies between 0 and 1 by construction may keep
    to either; all else is judged in dB, and in `total` its worst sample as well.
    """
    found = [
        missed
        for label, figures in measured.items()
        for missed in _of(rung, label, figures, subjects.get(label, Subject(label)), limits)
    ]
    return sorted(found, key=lambda missed: (missed.kind != "outside", -missed.missing))


def judged_by(label: str, rung: str, figures: Figures, subject: Subject, limits: Limits) -> Literal["dB", "error"]:
    """The figure that decides: the error where that is asked for, or where it is small although the dB are few."""
    if limits.declares_error(label):
        return "error"
    few = not _keeps_db(figures, limits.least_db(label, rung, state=subject.state))
    return "error" if few and _is_small(figures, limits.most_error(label, rung, bounded=subject.bounded)) else "dB"


def _of(rung: str, label: str, figures: Figures, subject: Subject, limits: Limits) -> Iterator[Shortfall]:
    least = limits.least_db(label, rung, state=subject.state)
    most = limits.most_error(label, rung, bounded=subject.bounded)
    small, declared = _is_small(figures, most), limits.declares_error(label)
    if rung == TOTAL and _is_outside(figures, limits.most_outside(label)):
        yield Shortfall(rung, label, "outside", figures, limits.most_outside(label), math.inf)
    if declared and not small and most is not None:
        yield Shortfall(rung, label, "error", figures, most, _over(figures, most))
    if limits.asks_db(label, rung) and (declared or not small):
        if not _keeps_db(figures, least):
            yield Shortfall(rung, label, "db", figures, least, least - _number(figures.sqnr_db))
        worst = limits.worst_sample_db(label, state=subject.state)
        if rung == TOTAL and subject.by == "values" and _number(figures.worst_db) < worst:
            yield Shortfall(rung, label, "worst", figures, worst, worst - _number(figures.worst_db))
    if rung == TOTAL and not declared and not small:
        yield from _read_otherwise(label, figures, subject, limits)
    cosine = limits.least_cosine(label)
    if rung == TOTAL and cosine is not None and (figures.cosine is None or figures.cosine < cosine):
        yield Shortfall(rung, label, "cosine", figures, cosine, 0.0)


def _read_otherwise(label: str, figures: Figures, subject: Subject, limits: Limits) -> Iterator[Shortfall]:
    found = figures.agreement
    if found is None:
        return
    if subject.reads == "level":
        least = limits.overlap
        short = max(least - found.share, 1 - WORST_BELOW * (1 - least) - found.worst)
        if short > 0:
            yield Shortfall(TOTAL, label, "overlap", figures, least, short)
    elif found.share < (least := limits.choices) and (subject.reads == "likeliest" or limits.scores):
        yield Shortfall(TOTAL, label, "choices", figures, least, least - found.share)
    if limits.flips is not None and found.flips is not None and found.flips > limits.flips:
        yield Shortfall(TOTAL, label, "flips", figures, limits.flips, found.flips - limits.flips)


def _is_outside(figures: Figures, most: float) -> bool:
    """Whether a value is no number, or lies far outside; of an original that is 0 throughout the error tells."""
    outlier = figures.outlier
    return outlier is not None and (outlier.value is None or (outlier.times is not None and outlier.times > most))


def _is_small(figures: Figures, most: float | None) -> bool:
    return most is not None and figures.max_abs_error is not None and figures.max_abs_error <= most


def _keeps_db(figures: Figures, least: float) -> bool:
    return _number(figures.sqnr_db) >= least


def _over(figures: Figures, most: float) -> float:
    """An error over what is allowed, in dB."""
    if figures.max_abs_error is None or most <= 0:
        return math.inf
    return 20 * math.log10(figures.max_abs_error / most)


def _number(value: float | None) -> float:
    return -math.inf if value is None else value
