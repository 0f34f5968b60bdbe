"""The artifacts in run.json: one for each component, bucket and target, with its files and its accuracy."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from pipeline.config.load import Bucket, Target
from pipeline.contracts import context, emulate, verify
from pipeline.contracts.cost import CostFacts
from pipeline.contracts.measures import Score
from pipeline.model import Json, Manifest
from pipeline.plan.own_buckets import OwnBuckets
from pipeline.plan.steps import Step
from pipeline.report import report


def artifacts(
    steps: Sequence[Step], seen: Collection[str], manifests: Mapping[str, Manifest]
) -> Iterator[tuple[str, Json]]:
    """The artifacts of the steps among those `seen`, by `<model>/<component>/<bucket>/<target>`."""
    names = {step.id for step in steps}
    for step in steps:
        manifest = manifests.get(step.id)
        if step.stage != "context" or step.id not in seen or manifest is None:
            continue
        for bucket, name, part in _parts(step, manifest, manifests):
            for target in step.targets:
                yield (
                    f"{step.config.name}/{step.component}/{name}/{target.soc}",
                    _artifact(step, bucket, target, part, seen, names, manifests),
                )


def _parts(step: Step, manifest: Manifest, manifests: Mapping[str, Manifest]) -> Iterator[tuple[Bucket, str, Manifest]]:
    """Each bucket, its name on the component's own axes, and what a context step made for it."""
    assert step.component is not None
    own = OwnBuckets.of_step(step, manifests)
    seen = set()
    for bucket in step.config.buckets if step.bucket is None else (step.bucket,):
        name = own.own(bucket).name if own else bucket.name
        part = manifest.part(name)
        if part is not None and name not in seen:
            seen.add(name)
            yield bucket, name, part


def _artifact(
    step: Step,
    bucket: Bucket,
    target: Target,
    part: Manifest,
    seen: Collection[str],
    names: Collection[str],
    manifests: Mapping[str, Manifest],
) -> Json:
    made_by = {
        "context": step.id,
        "verify": report.of_bucket(step, "verify", bucket),
        "emulate": report.emulation(step, bucket, target),
    }
    cpu = report.on_the_cpu(step, bucket, seen, manifests)
    emulator = report.emulated(step, bucket, target, seen, manifests)
    made = part.read(context.PartFacts.from_json)
    return {
        "steps": {stage: name for stage, name in made_by.items() if name in names},
        "packing": manifests[step.id].read(context.Facts.from_json).form,
        "scheme": report.scheme(step, manifests),
        "bytes": sum(entry.bytes for entry in part.files.values()),
        "files": {name: {"bytes": entry.bytes, "sha256": entry.sha256} for name, entry in part.files.items()},
        "partitions": made.partitions,
        "cpu_nodes": len(made.fallbacks),
        "cost": _cost(made.cost),
        "sqnr_db": _sqnr(cpu, emulator),
        **({"reading": cpu.reading.to_json()} if cpu.reading else {}),
        "cosine": report.least_cosine((emulator if emulator.samples else cpu).outputs),
        **({"language": _language(cpu, emulator)} if cpu.language else {}),
        "samples": {"cpu": cpu.samples, "emulator": emulator.samples},
        "score": _score(cpu.score),
        "emulated_score": _score(emulator.score),
    }


def _cost(cost: CostFacts) -> dict[str, Json]:
    """What one run takes; without what the compiler does not tell."""
    figures: dict[str, int | None] = {
        "macs": cost.all_macs,
        "weight_bytes": cost.weight_bytes,
        "activation_bytes": cost.activation_bytes,
        "vtcm_bytes": cost.vtcm_bytes,
        "spill_bytes": cost.spill_bytes,
        "dram_read_bytes": cost.dram_read_bytes,
        "dram_write_bytes": cost.dram_write_bytes,
    }
    return {name: value for name, value in figures.items() if value is not None}


def _sqnr(cpu: verify.Facts, emulator: emulate.Facts) -> dict[str, Json]:
    """The SQNR of the worst output on each rung that was measured, in dB; null if it is not finite."""
    found: dict[str, Json] = {}
    for facts in (cpu, emulator):
        if facts.samples:
            found |= {rung: report.least_db(measured) for rung, measured in facts.rungs.items()}
            found["total"] = report.least_db(facts.outputs)
    return found


def _language(cpu: verify.Facts, emulator: emulate.Facts) -> Json:
    """How far next tokens are from the original's on each rung."""
    return {rung: found.to_json() for rung, found in report.spoken(cpu, emulator).items()}


def _score(score: Score | None) -> Json:
    """The name of a score and its values on the same samples, for the original and for what was made."""
    return {"name": score.name, "original": score.fp32, "made": score.made[1]} if score else None
