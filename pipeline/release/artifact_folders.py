"""What belongs into `artifacts/<model>/`: files, and what manifest.json says of them.

artifacts/<model>/<target>/    context models and binaries for that target alone
artifacts/<model>/socs/        those whose binaries hold a context for each of several targets
artifacts/<model>/qdq/         the QDQ models that they were compiled from
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from pipeline import report, stage_params
from pipeline.config import Auto, Bucket, LocalSource, ModelConfig, Quantization, Target
from pipeline.errors import StoreError
from pipeline.keys import package_version, qairt_version
from pipeline.model import PARTS, FileEntry, Json, Manifest
from pipeline.pins import pinned_revision
from pipeline.plan import Step
from pipeline.qnn import catalog
from pipeline.storage.manifests import read_manifest
from pipeline.workspace import Workspace

SCHEMA_VERSION = 3
MANIFEST = "manifest.json"
QDQ = "qdq"
SOCS = "socs"


@dataclass(frozen=True)
class Folder:
    """One folder of artifacts as it should be: payloads by file name, and the text of its manifest."""

    path: Path
    files: Mapping[str, FileEntry]
    manifest: bytes


def folders(config: ModelConfig, steps: Sequence[Step], workspace: Workspace) -> list[Folder]:
    """The folders that these steps of a model should leave behind; raises StoreError while a step has no output."""
    manifests: dict[str, Manifest] = {}
    for step in steps:
        manifest = read_manifest(workspace.current(step))
        if manifest is None:
            raise StoreError(
                f"{step.id} has no output to publish",
                where=str(workspace.current(step)),
                why="the file is missing or damaged",
                remedy=f"run 'doit {step.id}', then the same command again",
            )
        manifests[step.id] = manifest
    source = _source(config, manifests[f"fetch:{config.name}"], workspace)
    by_folder: dict[str, list[Step]] = {}
    for step in steps:
        if step.stage == "context" and manifests[step.id].facts[PARTS]:
            name = step.target.soc if step.target else SOCS
            by_folder.setdefault(name, []).append(step)
    found = [_context_folder(config, name, made, manifests, source, workspace) for name, made in by_folder.items()]
    quantized = [step for step in steps if step.stage == "quantize"]
    if quantized:
        found.append(_qdq_folder(config, quantized, manifests, workspace))
    return found


def _context_folder(
    config: ModelConfig,
    name: str,
    steps: Sequence[Step],
    manifests: Mapping[str, Manifest],
    source: Json,
    workspace: Workspace,
) -> Folder:
    """The folder of these context steps, which are for the same targets."""
    files: dict[str, FileEntry] = {}
    components: dict[str, dict[str, Json]] = {}
    for step in steps:
        assert step.component is not None
        manifest = manifests[step.id]
        files |= manifest.files
        component = components.setdefault(step.component, {"packing": manifest.facts["form"], "buckets": []})
        listed = cast("list[Json]", component["buckets"])
        for bucket, part in _parts(step, manifest, manifests):
            entry = _bucket(step, bucket, part, manifests)
            if entry not in listed:  # two buckets of the model may be one of this component
                listed.append(entry)
    raw: dict[str, Json] = {
        "schema_version": SCHEMA_VERSION,
        "model": config.name,
        "source": source,
        "targets": [_target(target) for target in steps[0].targets],
        "tools": {
            "onnxruntime": package_version("onnxruntime"),
            "onnxruntime-qnn": package_version("onnxruntime-qnn"),
            "qairt": qairt_version(),
        },
        "components": {**components},
    }
    return Folder(workspace.artifacts / config.name / name, files, _text(raw))


def _target(target: Target) -> Json:
    soc = catalog.resolve(target.soc)
    return {
        "name": target.soc,
        "soc": soc.chip,
        "soc_model": soc.soc_model,
        "htp_arch": soc.htp_arch,
        "vtcm_mb": target.vtcm_mb,
    }


def _parts(step: Step, manifest: Manifest, manifests: Mapping[str, Manifest]) -> Iterator[tuple[Bucket, Manifest]]:
    """What a context step made for each bucket, with the bucket as the config has it; the smallest first."""
    seen = set()
    for bucket in step.config.buckets if step.bucket is None else (step.bucket,):
        name = bucket.on(_axes_of(step, manifests)).name
        part = manifest.part(name)
        if part is not None and name not in seen:
            seen.add(name)
            yield bucket, part


def _bucket(step: Step, bucket: Bucket, part: Manifest, manifests: Mapping[str, Manifest]) -> Json:
    facts = part.facts
    assert step.component is not None
    return {
        "axes": facts["axes"],
        "context_model": facts["context_model"],
        "binaries": facts["binaries"],
        "files": _entries(part.files),
        "inputs": facts["inputs"],
        "outputs": facts["outputs"],
        "padding": dict(step.config.components[step.component].padding),
        "partitions": facts["partitions"],
        "cpu_nodes": facts["cpu_nodes"],
        "compatibility": facts["compatibility"],
        "quantization": _quantization(step, manifests),
        "rewrites": _rewrites(step, bucket, manifests),
        "verification": _verification(step, bucket, manifests),
    }


def _qdq_folder(
    config: ModelConfig, steps: Iterable[Step], manifests: Mapping[str, Manifest], workspace: Workspace
) -> Folder:
    """QDQ models in one folder, with what a search found, each file under the name that quantize gave it."""
    files: dict[str, FileEntry] = {}
    components: dict[str, Json] = {}
    for step in steps:
        assert step.component is not None
        found: dict[str, FileEntry] = {}
        if precision := manifests.get(f"precision:{config.name}/{step.component}"):
            found[f"{step.component}_quantization.yaml"] = precision.files["quantization.yaml"]
        files |= {**manifests[step.id].files, **found}
        buckets: list[Json] = []
        for bucket in config.buckets_on(_axes_of(step, manifests)):
            part = manifests[step.id].part(bucket.name)
            assert part is not None
            model = f"{step.component}_{bucket.name}.onnx"
            own = {model if name == "model.onnx" else name: entry for name, entry in part.files.items()}
            buckets.append(
                {
                    "axes": dict(bucket.axes),
                    "model": model,
                    "files": _entries({**own, **found}),
                    "inputs": part.facts["inputs"],
                    "outputs": part.facts["outputs"],
                    "quantization": _quantization(step, manifests),
                }
            )
        components[step.component] = {"buckets": buckets}
    raw: dict[str, Json] = {"schema_version": SCHEMA_VERSION, "model": config.name, "components": components}
    return Folder(workspace.artifacts / config.name / QDQ, files, _text(raw))


def _axes_of(step: Step, manifests: Mapping[str, Manifest]) -> list[str]:
    """The axes that the step's component has."""
    assert step.component is not None
    axes = manifests[step.ingests[step.component]].facts["axes"]
    assert isinstance(axes, dict)
    return list(axes)


def _entries(files: Mapping[str, FileEntry]) -> dict[str, Json]:
    return {name: {"sha256": entry.sha256, "bytes": entry.bytes} for name, entry in files.items()}


def _quantization(step: Step, manifests: Mapping[str, Manifest]) -> dict[str, Json]:
    """How numbers are stored, and how that was found."""
    assert step.component is not None
    quantization = step.config.components[step.component].quantization
    found: dict[str, Json] = {"scheme": report.scheme(step, manifests)}
    match quantization:
        case Quantization():
            return {**found, **stage_params.of_quantization(quantization), **stage_params.of_method(quantization)}
        case Auto():
            precision = manifests[f"precision:{step.config.name}/{step.component}"].facts
            return {**found, "precision": "auto", "search": dict(precision)}
        case _:
            return found


def _rewrites(step: Step, bucket: Bucket, manifests: Mapping[str, Manifest]) -> dict[str, Json]:
    """Those that changed the model, and in how many places."""
    applied = manifests[report.of_bucket(step, "rewrite", bucket)].facts["applied"]
    assert isinstance(applied, dict)
    return {name: count for name, count in applied.items() if count}


def _verification(step: Step, bucket: Bucket, manifests: Mapping[str, Manifest]) -> Json:
    """What was measured on the CPU, and on the emulator for each target; null for what was not."""
    verify = manifests.get(report.of_bucket(step, "verify", bucket))
    emulated: dict[str, Json] = {}
    for target in step.targets:
        if emulate := manifests.get(report.emulation(step, bucket, target)):
            emulated[target.soc] = dict(emulate.facts)
    return {"cpu": dict(verify.facts) if verify else None, "emulator": emulated or None}


def _source(config: ModelConfig, fetch: Manifest, workspace: Workspace) -> Json:
    files: dict[str, Json] = {name: entry.sha256 for name, entry in fetch.files.items()}
    if isinstance(config.source, LocalSource):
        return {"hub": None, "revision": None, "files": files}
    hub = config.source.hub
    return {"hub": hub, "revision": pinned_revision(hub, config.source.revision, workspace.pins), "files": files}


def _text(raw: Mapping[str, Json]) -> bytes:
    return json.dumps(raw, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n"
