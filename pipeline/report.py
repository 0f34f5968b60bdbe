"""What the user sees at the end of a build: what was compiled, and how accurate it is."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import cast

from pipeline.config import Bucket
from pipeline.model import Json, Manifest
from pipeline.plan import Step
from pipeline.thresholds import EXACT_DB, RUNGS

_CONTEXTS = ("component", "bucket", "target", "scheme", "partitions", "CPU nodes", "size", "time", "")
_ACCURACY = ("SQNR in dB", "bucket", "target", *RUNGS, "total", "cosine", "samples")
_SCORES = ("score", "component", "bucket", "target", "original", "on the CPU", "original", "emulated")
_LEFT = frozenset({"component", "SQNR in dB", "score", "bucket", "target", "scheme", "samples", ""})

Facts = Mapping[str, Json]
Table = Sequence[tuple[str, ...]]
"""A heading and rows of as many cells; empty where there are no rows."""


def contexts(
    steps: Iterable[Step], manifests: Mapping[str, Manifest], outcomes: Mapping[str, tuple[str, float]]
) -> Table:
    """A row for each context step: `outcomes` says which ran in this build, and for how many seconds."""
    rows = []
    for step in steps:
        manifest = manifests.get(step.id)
        if step.stage != "context" or manifest is None or step.target is None:
            continue
        outcome, seconds = outcomes.get(step.id, ("cached", 0.0))
        cpu_nodes = manifest.facts["cpu_nodes"]
        assert isinstance(cpu_nodes, list)
        rows.append(
            (
                f"{step.config.name}/{step.component}",
                str(manifest.facts["bucket"]),
                step.target.soc,
                scheme(step, manifests),
                str(manifest.facts["partitions"]),
                str(sum(isinstance(node, dict) and not node.get("edge") for node in cpu_nodes)),
                human_bytes(sum(entry.bytes for entry in manifest.files.values())),
                f"{seconds:.1f} s" if outcome == "built" else "-",
                outcome,
            )
        )
    return [_CONTEXTS, *rows] if rows else []


def accuracy(steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]) -> Table:
    """A row for each component, bucket and target of which a rung was measured, by a step among those `seen`."""
    rows = [
        (*_place(step, manifests), *_figures(verify, emulate))
        for step, verify, emulate in _measured(steps, seen, manifests)
    ]
    return [_ACCURACY, *rows] if rows else []


def scores(steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]) -> Table:
    """A row for each of the same that has a score: of the original and of what was made, on the same samples each."""
    rows = []
    for step, verify, emulate in _measured(steps, seen, manifests):
        found = [_object(facts.get("score")) for facts in (verify, emulate)]
        names = [score.pop("name", None) for score in found]
        if names[0] is not None:
            cells = [f"{value:.4g}" for score in found for value in score.values()]
            rows.append((str(names[0]), *_place(step, manifests), *cells, *["-"] * (4 - len(cells))))
    return [_SCORES, *rows] if rows else []


def _measured(
    steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]
) -> Iterator[tuple[Step, Facts, Facts]]:
    """Context steps of which a rung was measured, with the facts of the CPU's rungs and of the emulator's."""
    for step in steps:
        verify = manifests.get(sibling(step, "verify"))
        if step.stage == "context" and verify is not None and sibling(step, "verify") in seen:
            # What was emulated before a step above it changed is not this model's.
            emulate = manifests.get(emulation(step)) if emulation(step) in seen else None
            yield step, verify.facts, emulate.facts if emulate else {}


def unmeasured(steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]) -> list[str]:
    """The buckets, as `minilm/encoder/64`, that no sample measured."""
    found = [step for step in steps if step.stage == "verify" and step.id in seen]
    return [step.name for step in found if (manifest := manifests.get(step.id)) and not manifest.facts["samples"]]


def table(rows: Table) -> str:
    """The rows as aligned text under their heading, without columns that are empty; nothing for no rows."""
    if not rows:
        return ""
    kept = [index for index in range(len(rows[0])) if any(row[index] for row in rows[1:])]
    widths = {index: max(len(row[index]) for row in rows) for index in kept}
    text = []
    for row in rows:
        cells = (
            row[index].ljust(widths[index]) if rows[0][index] in _LEFT else row[index].rjust(widths[index])
            for index in kept
        )
        text.append("  ".join(cells).rstrip())
    text.insert(1, "  ".join("-" * widths[index] for index in kept).rstrip())
    return "\n".join(text)


def scheme(step: Step, manifests: Mapping[str, Manifest]) -> str:
    """How the numbers of a context are stored, such as `w8a16`."""
    quantize = manifests.get(sibling(step, "quantize"))
    return str(quantize.facts["scheme"]) if quantize else "fp16"


def sibling(step: Step, stage: str) -> str:
    """The id of another step of the same component and bucket."""
    bucket = step.bucket or Bucket({})
    return f"{stage}:{step.config.name}/{step.component}/{bucket.name}"


def emulation(step: Step) -> str:
    """The id of the emulate step of the same component, bucket and target."""
    return f"{sibling(step, 'emulate')}/{step.target.soc if step.target else ''}"


def human_bytes(count: int) -> str:
    """A size in decimal units, e.g. `36.2 MB`."""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _place(step: Step, manifests: Mapping[str, Manifest]) -> tuple[str, str, str]:
    """Component, bucket and target of a context step; once it is known, the bucket on the component's own axes."""
    context = manifests.get(step.id)
    bucket = str(context.facts["bucket"]) if context else step.bucket.name if step.bucket else ""
    return f"{step.config.name}/{step.component}", bucket, step.target.soc if step.target else ""


def _figures(verify: Facts, emulate: Facts) -> tuple[str, ...]:
    rungs = {**_object(verify.get("rungs")), **_object(emulate.get("rungs"))}
    last = emulate if emulate.get("samples") else verify
    return (
        *(_least(rungs.get(rung), "sqnr_db", ".1f") for rung in RUNGS),
        _least(last.get("outputs"), "sqnr_db", ".1f"),
        _least(last.get("outputs"), "cosine", ".5f"),
        _samples(verify, emulate),
    )


def _least(measured: Json, figure: str, form: str) -> str:
    """The worst figure of all outputs."""
    if not measured:
        return "-"
    values = [_object(found).get(figure) for found in _object(measured).values()]
    if not all(isinstance(value, float | int) for value in values):
        return "none"
    least = min(cast("list[float]", values))
    return "exact" if figure == "sqnr_db" and least >= EXACT_DB else format(least, form)


def _samples(verify: Facts, emulate: Facts) -> str:
    """How many were run on the CPU, and how many on the emulator."""
    if not verify.get("samples"):
        return "none held out"
    emulated = f"{emulate['samples']} emulated" if emulate.get("samples") else "not emulated"
    if emulate.get("emulated") == "plain compile":
        emulated += " (compiled plainly)"
    return f"{verify['samples']}, {emulated}"


def _object(value: Json | Mapping[str, Json]) -> dict[str, Json]:
    return dict(value) if isinstance(value, Mapping) else {}
