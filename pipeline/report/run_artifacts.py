"""What there is after a build for each component, bucket and target, and how accurate it is: a part of run.json."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import cast

from pipeline import report
from pipeline.config import Bucket, Target
from pipeline.model import Json, Manifest
from pipeline.plan import Step
from pipeline.summary import Ran


def artifacts(ran: Ran) -> Iterator[tuple[str, Json]]:
    """What there is now, as far as the command looked at it, by `<model>/<component>/<bucket>/<target>`."""
    seen = ran.checked | ran.missed
    for step in ran.steps.values():
        manifest = ran.manifests.get(step.id)
        if step.stage != "context" or step.id not in seen or manifest is None:
            continue
        for bucket, name, part in _parts(step, manifest, ran.manifests):
            for target in step.targets:
                yield (
                    f"{step.config.name}/{step.component}/{name}/{target.soc}",
                    _artifact(step, bucket, target, manifest, part, ran, seen),
                )


def _parts(step: Step, manifest: Manifest, manifests: Mapping[str, Manifest]) -> Iterator[tuple[Bucket, str, Manifest]]:
    """What a context step made for each bucket, with the bucket, and its name on the component's own axes."""
    assert step.component is not None
    ingest = manifests.get(step.ingests[step.component])
    seen = set()
    for bucket in step.config.buckets if step.bucket is None else (step.bucket,):
        name = bucket.on(cast("Mapping[str, Json]", ingest.facts["axes"])).name if ingest else bucket.name
        part = manifest.part(name)
        if part is not None and name not in seen:
            seen.add(name)
            yield bucket, name, part


def _artifact(
    step: Step, bucket: Bucket, target: Target, manifest: Manifest, part: Manifest, ran: Ran, seen: Collection[str]
) -> Json:
    made_by = {
        "context": step.id,
        "verify": report.of_bucket(step, "verify", bucket),
        "emulate": report.emulation(step, bucket, target),
    }
    verify, emulate = (
        ran.manifests[made_by[stage]].facts if made_by[stage] in seen and made_by[stage] in ran.manifests else {}
        for stage in ("verify", "emulate")
    )
    return {
        "steps": {stage: name for stage, name in made_by.items() if name in ran.steps},
        "packing": manifest.facts["form"],
        "scheme": report.scheme(step, ran.manifests),
        "bytes": sum(entry.bytes for entry in part.files.values()),
        "files": {name: {"bytes": entry.bytes, "sha256": entry.sha256} for name, entry in part.files.items()},
        "partitions": part.facts["partitions"],
        "cpu_nodes": report.fallbacks(part.facts),
        "sqnr_db": _sqnr(verify, emulate),
        "cosine": _least((emulate if emulate.get("samples") else verify).get("outputs"), "cosine"),
        "samples": {"cpu": verify.get("samples", 0), "emulator": emulate.get("samples", 0)},
        "score": _score(verify),
        "emulated_score": _score(emulate),
    }


def _sqnr(verify: Mapping[str, Json], emulate: Mapping[str, Json]) -> dict[str, Json]:
    """The worst of all outputs on each rung that was measured, in dB; null for no finite number."""
    found: dict[str, Json] = {}
    for facts in (verify, emulate):
        if facts.get("samples"):
            rungs = cast("Mapping[str, Json]", facts["rungs"])
            found |= {rung: _least(measured, "sqnr_db") for rung, measured in rungs.items()}
            found["total"] = _least(facts["outputs"], "sqnr_db")
    return found


def _least(measured: Json, figure: str) -> float | None:
    if not isinstance(measured, dict) or not measured:
        return None
    values = [cast("Mapping[str, Json]", each).get(figure) for each in measured.values()]
    return min(cast("list[float]", values)) if all(isinstance(value, float | int) for value in values) else None


def _score(facts: Mapping[str, Json]) -> Json:
    """The name of a score, its value for the original, and for what was made, on the same samples."""
    score = facts.get("score")
    if not isinstance(score, dict) or not facts.get("samples"):
        return None
    values = [score[name] for name in score if name not in ("name", "fp32")]
    return {"name": score.get("name"), "original": score.get("fp32"), "made": values[0] if values else None}
