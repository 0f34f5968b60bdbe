"""What a build remarks on below its tables: what nothing measured, outputs that tell nothing or may be otherwise."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from pipeline.config.thresholds import WISHED_FLIPS
from pipeline.contracts import samples, verify
from pipeline.graph.accuracy.verdict import TOTAL, shortfalls
from pipeline.model import Manifest
from pipeline.plan.steps import Step, held_out_set
from pipeline.report import report
from pipeline.report.remark_lines import AS_WRITTEN, Kind, Remarks

_Finder = Callable[[Iterable[Step], Collection[str], Mapping[str, Manifest]], list[str]]


def remarks(steps: Sequence[Step], seen: Collection[str], manifests: Mapping[str, Manifest]) -> Remarks:
    """What there is to remark on a model with these steps, of those `seen`; what is found nowhere is left out."""
    found = {kind: find(steps, seen, manifests) for kind, find in FINDERS.items()}
    return {kind: names for kind, names in found.items() if names}


def unmeasured(steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]) -> list[str]:
    """The buckets, as `minilm/encoder/64`, that no sample measured; of exact lengths, with the lengths to add."""
    found = []
    for step, facts in _verified(steps, seen, manifests):
        if not facts.samples:
            axes = ", ".join(f"{axis} {size}" for axis, size in (step.bucket.axes if step.bucket else {}).items())
            found.append(f"{step.name} (of exactly {axes})" if facts.truth == "exact" else step.name)
    return found


def unneeded(steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]) -> list[str]:
    """The buckets that no sample of their set needs, calibration's included; smaller ones' were measured there.

    As `net/encoder/128 (all samples of 'calibration' have sequence 5 to 60)`.
    """
    return [name for name, is_needed in _padded(steps, seen, manifests) if not is_needed]


def kept(steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]) -> list[str]:
    """As :func:`unneeded`, the buckets that samples need, none of which is held out."""
    return [name for name, is_needed in _padded(steps, seen, manifests) if is_needed]


def silent(steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]) -> list[str]:
    """Outputs between 0 and 1, as `vad/all 'output'`, that never get near 1 on the held-out samples."""
    return [f"{step.name} {label!r}" for step, facts in _verified(steps, seen, manifests) for label in facts.silent]


def still(steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]) -> list[str]:
    """Outputs, as `net/all 'logits' (0)`, that are one number everywhere, on each of several held-out samples."""
    found = []
    for step, facts in _verified(steps, seen, manifests):
        spans = facts.spans.items() if facts.samples > 1 else ()
        found += [f"{step.name} {label!r} ({low:g})" for label, (low, high) in spans if low == high]
    return found


def long(steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]) -> list[str]:
    """Axes, as `net/encoder (sequence 29 to 128, smallest bucket 32)`, that no sample is much shorter on than a bucket.

    The shortest is longer than half of the smallest bucket, and does not fill it: a model whose samples all do may
    well take nothing else.
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
    """Components, as `net/encoder (less than 10 dB)`, whose file rounds as it runs and is that far from its floats."""
    found: dict[str, int] = {}
    for step in steps:
        if step.stage == "samples" and step.id in seen and step.id in manifests:
            far = manifests[step.id].read(samples.Facts.from_json).rounding_db or {}
            for component, db in far.items():
                name = f"{step.config.name}/{component}"
                found[name] = min(db, found.get(name, db))
    return [f"{name} (less than {db} dB)" for name, db in found.items()]


def flipping(steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]) -> list[str]:
    """Outputs, as `net/reader/64 'y' (0.4 %)`, of which more choices will flip on other inputs than a default aims at.

    The share is that which the samples on the CPU show, or those on the emulator where that is more. What is judged by
    its error alone is not among them. Where the config has a scheme, that is said.
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


def _verified(
    steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]
) -> Iterator[tuple[Step, verify.Facts]]:
    """The verify steps among those `seen`, with what they found."""
    for step in steps:
        if step.stage == "verify" and step.id in seen and step.id in manifests:
            yield step, manifests[step.id].read(verify.Facts.from_json)


FINDERS: Mapping[Kind, _Finder] = {
    "unmeasured": unmeasured,
    "unneeded": unneeded,
    "kept": kept,
    "silent": silent,
    "still": still,
    "long": long,
    "flipping": flipping,
    "rounding": rounding,
}
