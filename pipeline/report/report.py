"""What the user sees at the end of a build: what was compiled, and how accurate it is."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import cast

from pipeline.config import Bucket, Target
from pipeline.model import PARTS, Json, Manifest
from pipeline.plan import Step
from pipeline.thresholds import EXACT_DB, RUNGS

_CONTEXTS = ("component", "bucket", "target", "scheme", "partitions", "CPU nodes", "size", "time", "")
_ACCURACY = ("SQNR in dB", "bucket", "target", *RUNGS, "total", "cosine", "samples")
_SCORES = ("score", "component", "bucket", "target", "original", "on the CPU", "emulated: original", "context")
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
        if step.stage != "context" or manifest is None:
            continue
        parts = [_object(_object(part)["facts"]) for part in _object(manifest.facts[PARTS]).values()]
        parts.sort(key=lambda facts: [*_object(facts["axes"]).values()])
        if not parts:  # another form of binary was chosen
            continue
        outcome, seconds = outcomes.get(step.id, ("cached", 0.0))
        rows.append(
            (
                f"{step.config.name}/{step.component}",
                ", ".join(str(facts["bucket"]) for facts in parts),
                ", ".join(target.soc for target in step.targets),
                scheme(step, manifests),
                str(max(cast("int", facts["partitions"]) for facts in parts)),
                str(sum(fallbacks(facts) for facts in parts)),
                human_bytes(sum(entry.bytes for entry in manifest.files.values())),
                f"{seconds:.1f} s" if outcome == "built" else "-",
                outcome,
            )
        )
    return [_CONTEXTS, *rows] if rows else []


def fallbacks(facts: Facts) -> int:
    """How many nodes run on the CPU, conversions at the graph's edge not counted."""
    cpu_nodes = cast("list[Mapping[str, Json]]", facts["cpu_nodes"])
    return sum(not node.get("edge") for node in cpu_nodes)


def accuracy(steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]) -> Table:
    """A row for each component, bucket and target of which a rung was measured, by a step among those `seen`."""
    rows = [(*place, *_figures(verify, emulate)) for place, verify, emulate in _measured(steps, seen, manifests)]
    return [_ACCURACY, *rows] if rows else []


def scores(steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]) -> Table:
    """A row for each of the same that has a score: of the original and of what was made, on the same samples each.

    The last two are of the samples that were emulated, which are fewer.
    """
    rows = []
    for place, verify, emulate in _measured(steps, seen, manifests):
        found = [_object(facts.get("score")) for facts in (verify, emulate)]
        names = [score.pop("name", None) for score in found]
        if names[0] is not None:
            cells = [f"{value:.4g}" for score in found for value in score.values()]
            rows.append((str(names[0]), *place, *cells, *["-"] * (4 - len(cells))))
    return [_SCORES, *rows] if rows else []


def _measured(
    steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]
) -> Iterator[tuple[tuple[str, str, str], Facts, Facts]]:
    """Component, bucket and target of which a rung was measured, with the facts of the CPU's and the emulator's."""
    steps = list(steps)
    wanted = {target for step in steps for target in step.targets}
    for step in steps:
        if step.stage != "verify" or step.id not in seen or step.id not in manifests:
            continue
        assert step.bucket is not None
        for target in step.config.targets:
            if target in wanted:
                emulate = emulation(step, step.bucket, target)
                # What was emulated before a step above it changed is not this model's.
                facts = manifests[emulate].facts if emulate in seen and emulate in manifests else {}
                yield _place(step, target, manifests), manifests[step.id].facts, facts


def unmeasured(steps: Iterable[Step], seen: Collection[str], manifests: Mapping[str, Manifest]) -> list[str]:
    """The buckets, as `minilm/encoder/64`, that no sample measured."""
    found = [step for step in steps if step.stage == "verify" and step.id in seen]
    return [step.name for step in found if (manifest := manifests.get(step.id)) and not manifest.facts["samples"]]


def unverified(steps: Iterable[Step], models: Iterable[str]) -> list[str]:
    """Those of the models of which no bucket is measured, by configuration."""
    measured = {step.config.name for step in steps if step.stage == "verify"}
    return [model for model in models if model not in measured]


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
    quantize = manifests.get(quantization(step))
    return str(quantize.facts["scheme"]) if quantize else "fp16"


def quantization(step: Step) -> str:
    """The id of the step that quantizes the same component."""
    return f"quantize:{step.config.name}/{step.component}"


def of_bucket(step: Step, stage: str, bucket: Bucket) -> str:
    """The id of the step of a stage that is about a bucket of the same component."""
    return f"{stage}:{step.config.name}/{step.component}/{bucket.name}"


def emulation(step: Step, bucket: Bucket, target: Target) -> str:
    """The id of the emulate step of a bucket of the same component, and a target."""
    return f"{of_bucket(step, 'emulate', bucket)}/{target.soc}"


def human_bytes(count: int) -> str:
    """A size in decimal units, e.g. `36.2 MB`."""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _place(step: Step, target: Target, manifests: Mapping[str, Manifest]) -> tuple[str, str, str]:
    """Component, bucket and target of a verify step, the bucket on the component's own axes."""
    assert step.bucket is not None
    assert step.component is not None
    ingest = manifests.get(step.ingests[step.component])
    bucket = step.bucket.on(_object(ingest.facts["axes"])) if ingest else step.bucket
    return f"{step.config.name}/{step.component}", bucket.name, target.soc


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
