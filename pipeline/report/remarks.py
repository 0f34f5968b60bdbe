"""Finds what a build remarks on below its tables, such as buckets that no sample measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from pipeline.config.thresholds import EXACT_REWRITE_DB, WISHED_FLIPS
from pipeline.contracts import reading, rewrite, samples, verify
from pipeline.graph.accuracy.verdict import TOTAL, shortfalls
from pipeline.model import Manifest
from pipeline.plan.steps import Step, held_out_set
from pipeline.report import report
from pipeline.report.remark_lines import AS_WRITTEN, Kind, Remarks

FEW = 4
"""A calibration set of fewer samples is taken for one that was forgotten: of four, one is held out."""
_Finder = Callable[[Iterable[Step], Collection[str], Mapping[str, Manifest]], list[str]]


def remarks(steps: Sequence[Step], seen: Collection[str], manifests: Mapping[str, Manifest]) -> Remarks:
    """The remarks on a model, from the facts of those of its steps that were `seen`; empty kinds are left out."""
    found = {kind: find(steps, seen, manifests) for kind, find in FINDERS.items()}
    return {kind: names for kind, names in found.items() if names}


def unmeasured(steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]) -> list[str]:
    """Buckets such as `minilm/encoder/64` that no sample measured. For exact lengths, with the lengths to add."""
    found = []
    for step, facts in _verified(steps, seen, manifests):
        if not facts.samples and not _is_alone(step, manifests):
            axes = ", ".join(f"{axis} {size}" for axis, size in (step.bucket.axes if step.bucket else {}).items())
            found.append(f"{step.name} (of exactly {axes})" if facts.truth == "exact" else step.name)
    return found


def alone(steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]) -> list[str]:
    """Buckets that no sample measured, as the whole calibration set is one."""
    verified = _verified(steps, seen, manifests)
    return [step.name for step, facts in verified if not facts.samples and _is_alone(step, manifests)]


def few(steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]) -> list[str]:
    """Components such as `net/encoder (2 samples)` whose ranges are those of fewer samples than FEW."""
    found = []
    for step in steps:
        if step.stage == "calibrate" and step.id in seen and step.id in manifests:
            given = manifests.get(f"samples:{step.config.name}/calibration")
            count = given.read(samples.Facts.from_json).count.get(step.component or "", 0) if given else FEW
            if 0 < count < FEW:
                name = f"{step.config.name}/{step.component}"
                found.append(f"{name} ({'one sample' if count == 1 else f'{count} samples'})")
    return found


def unneeded(steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]) -> list[str]:
    """Buckets that were measured on samples of smaller ones, and that no sample of the whole set needs.

    Such as `net/encoder/128 (all samples of 'calibration' have sequence 5 to 60)`.
    """
    return [name for name, is_needed in _padded(steps, seen, manifests) if not is_needed]


def kept(steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]) -> list[str]:
    """Buckets that were measured on samples of smaller ones, as all samples that need them went to calibration."""
    return [name for name, is_needed in _padded(steps, seen, manifests) if is_needed]


def silent(steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]) -> list[str]:
    """Outputs between 0 and 1, such as `vad/all 'output'`, that stay below a half on all held-out samples."""
    return [f"{step.name} {label!r}" for step, facts in _verified(steps, seen, manifests) for label in facts.silent]


def still(steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]) -> list[str]:
    """Outputs such as `net/all 'logits' (0)` that are one number everywhere, on all of several held-out samples."""
    found = []
    for step, facts in _verified(steps, seen, manifests):
        spans = facts.spans.items() if facts.samples > 1 else ()
        found += [f"{step.name} {label!r} ({low:g})" for label, (low, high) in spans if low == high]
    return found


def long(steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]) -> list[str]:
    """Axes such as `net/encoder (sequence 29 to 128, smallest bucket 32)` on which no held-out sample is short.

    The shortest sample is longer than half of the smallest bucket. It does not fill the bucket: a model whose samples
    all fill one may take no other length.
    """
    spans: dict[tuple[str, str], tuple[int, int, int]] = {}
    for step, facts in _verified(steps, seen, manifests):
        sizes = step.bucket.axes if step.bucket is not None and facts.truth == "unpadded" else {}
        for axis in sizes.keys() & facts.lengths.keys():
            place, lengths = (f"{step.config.name}/{step.component}", axis), facts.lengths[axis]
            smallest = min(sizes[axis], spans[place][2]) if place in spans else sizes[axis]
            spans[place] = min(lengths), max(lengths), smallest
    return [
        f"{component} ({axis} {low} to {high}, smallest bucket {smallest})"
        for (component, axis), (low, high, smallest) in sorted(spans.items())
        if smallest / 2 < low < smallest
    ]


def rounding(steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]) -> list[str]:
    """Components such as `net/encoder (8 dB)` whose file rounds as it runs, and its figure against its own floats."""
    return [
        f"{step.name} ({math.floor(min(each.sqnr_db or 0 for each in facts.figures.values()))} dB)"
        for step, facts in _read(steps, seen, manifests)
        if facts.reading.shown == "own rounding"
    ]


def unread(steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]) -> list[str]:
    """Components such as `net/encoder (neither engine runs the file ...)` whose file no engine ran on a sample."""
    return [
        f"{step.name} ({facts.reading.why})"
        for step, facts in _read(steps, seen, manifests)
        if facts.reading.shown == "not proven"
    ]


def flipping(steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]) -> list[str]:
    """Outputs such as `net/reader/64 'y' (0.4 %)` whose choices will flip more often than a default aims at.

    The share is the larger of those found on the CPU and on the emulator. Outputs that are judged by their error alone
    are left out. A figure says so if the config has a scheme, as no climb improves it then.
    """
    found: dict[str, float] = {}
    written = set[str]()
    for step, _, place, cpu, emulator, thresholds in report.measured(steps, seen, manifests):
        component = step.config.components[step.component or ""]
        limits = replace(component.wished or thresholds, flips=WISHED_FLIPS)
        for facts in (cpu, emulator):
            missed = shortfalls(TOTAL, facts.outputs, cpu.subjects, limits)
            for label in (each.label for each in missed if each.kind == "flips"):
                agreement, name = facts.outputs[label].agreement, f"{'/'.join(place[:2])} {label!r}"
                assert agreement is not None
                found[name] = max(agreement.flips or 0.0, found.get(name, 0.0))
                written |= {name} if component.budget_minutes is None else set()
    return [f"{name} ({report.percent(share)}{AS_WRITTEN if name in written else ''})" for name, share in found.items()]


def rewritten(steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]) -> list[str]:
    """Outputs such as `net/all 'y' (49.1 dB after scale_spectra)`, with the rewrites that were applied.

    They are those that keep to the total's threshold on the rewrite rung, and that exact rewrites would leave nearer.
    """
    found = []
    for step, facts in _verified(steps, seen, manifests):
        limits = step.config.components[step.component or ""].thresholds
        if limits.rewrite_db is not None:
            continue
        exact = replace(limits, rewrite_db=EXACT_REWRITE_DB)
        made = manifests.get(f"rewrite:{step.name}")
        applied = [name for name, count in made.read(rewrite.Facts.from_json).applied.items() if count] if made else []
        by = f" after {', '.join(applied)}" if applied else ""
        found += [
            f"{step.name} {missed.label!r} ({_decibels(missed.figures.sqnr_db)}{by})"
            for missed in shortfalls("rewrite", facts.rungs.get("rewrite", {}), facts.subjects, exact)
            if (own := limits.outputs.get(missed.label)) is None or own.rewrite_db is None
        ]
    return found


def _decibels(db: float | None) -> str:
    return "no number" if db is None else f"{db:.1f} dB"


def _padded(
    steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]
) -> Iterator[tuple[str, bool]]:
    """The buckets that were measured on samples of smaller ones alone, and whether any sample of the set needs them."""
    for step, facts in _verified(steps, seen, manifests):
        if facts.samples and facts.shorter == facts.samples:
            whose = held_out_set(step)
            spans = [f"{axis} {min(each)} to {max(each)}" for axis, each in facts.lengths.items() if each]
            told = f" (all samples of {whose.rpartition('/')[2]!r} have {', '.join(spans)})" if spans else ""
            found = (
                manifests[whose].read(samples.Facts.from_json).unneeded
                if whose in seen and whose in manifests
                else None
            )
            yield (
                f"{step.name}{told}",
                report.own_name(step, manifests) not in (found or {}).get(step.component or "", ()),
            )


def _is_alone(step: Step, manifests: Mapping[str, Manifest]) -> bool:
    """Whether the held-out samples would come from a calibration set of one."""
    given = manifests.get(held_out_set(step)) if step.config.verification.samples is None else None
    return given is not None and given.read(samples.Facts.from_json).samples == 1


def _verified(
    steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]
) -> Iterator[tuple[Step, verify.Facts]]:
    """The verify steps among those `seen`, with what they found."""
    for step in steps:
        if step.stage == "verify" and step.id in seen and step.id in manifests:
            yield step, manifests[step.id].read(verify.Facts.from_json)


def _read(
    steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]
) -> Iterator[tuple[Step, reading.Facts]]:
    """The reading steps among those `seen`, with what they found."""
    for step in steps:
        if step.stage == "reading" and step.id in seen and step.id in manifests:
            yield step, manifests[step.id].read(reading.Facts.from_json)


FINDERS: Mapping[Kind, _Finder] = {
    "unmeasured": unmeasured,
    "alone": alone,
    "few": few,
    "unneeded": unneeded,
    "kept": kept,
    "silent": silent,
    "still": still,
    "long": long,
    "flipping": flipping,
    "rounding": rounding,
    "rewritten": rewritten,
    "unread": unread,
}
