"""Writes `artifacts/<model>/`: per target the context models, binaries and manifest.json; and the QDQ models."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline import report, stage_params
from pipeline.config import Auto, LocalSource, ModelConfig, Quantization, Target
from pipeline.errors import StoreError
from pipeline.keys import package_version, qairt_version
from pipeline.model import FileEntry, Json, Manifest
from pipeline.pins import pinned_revision
from pipeline.plan import Step
from pipeline.qnn import catalog
from pipeline.store import read_manifest, write_atomically
from pipeline.workspace import Workspace

SCHEMA_VERSION = 2
MANIFEST = "manifest.json"
QDQ = "qdq"


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
    source = manifests[f"fetch:{config.name}"]
    targets = {step.target.soc: step.target for step in steps if step.target}
    found = [_target_folder(config, target, steps, manifests, source, workspace) for target in targets.values()]
    quantized = [step for step in steps if step.stage == "quantize"]
    if quantized:
        found.append(_qdq_folder(config, quantized, manifests, workspace))
    return found


def is_published(folder: Folder, workspace: Workspace) -> bool:
    """Whether the folder on disk holds exactly these files; their contents are hashed when their stat changed."""
    try:
        if (folder.path / MANIFEST).read_bytes() != folder.manifest:
            return False
        present = {path.name for path in folder.path.iterdir()}
        return present == {*folder.files, MANIFEST} and all(
            workspace.memo.sha256(folder.path / name) == entry.sha256 for name, entry in folder.files.items()
        )
    except OSError:
        return False


def publish(folder: Folder, workspace: Workspace) -> None:
    """Make the folder on disk what it should be: payloads first, manifest last, then leftovers of ours removed."""
    manifest = folder.path / MANIFEST
    ours = _names_in(manifest)
    stale = [name for name, entry in folder.files.items() if not _same(folder.path / name, entry, workspace)]
    try:
        if stale:
            manifest.unlink(missing_ok=True)  # while payloads change, the folder makes no claim about them
        for name in stale:
            workspace.store.export(folder.files[name], folder.path / name)
        write_atomically(manifest, folder.manifest)
        for name in ours - set(folder.files):
            (folder.path / name).unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(
            "the artifacts folder can't be written",
            where=str(error.filename or folder.path),
            why=error.strerror or str(error),
            remedy="mend the cause, then run the same command again",
        ) from error


def remove(model: str, workspace: Workspace) -> list[Path]:
    """Delete all artifacts of a model that a manifest of ours names; the files deleted."""
    root = workspace.artifacts / model
    removed = [path for manifest in sorted(root.glob(f"*/{MANIFEST}")) for path in remove_folder(manifest.parent)]
    if root.is_dir() and not any(root.iterdir()):
        root.rmdir()
    return removed


def remove_folder(folder: Path) -> list[Path]:
    """Delete the files that the folder's manifest names, and the folder if that empties it; the files deleted."""
    paths = [folder / name for name in sorted(_names_in(folder / MANIFEST)) if (folder / name).is_file()]
    paths.append(folder / MANIFEST)
    for path in paths:
        path.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()
    return paths


def dropped_targets(config: ModelConfig, workspace: Workspace) -> list[Path]:
    """Folders of artifacts of ours for targets that the configuration no longer names."""
    wanted = {target.soc for target in config.targets} | {QDQ}
    manifests = sorted((workspace.artifacts / config.name).glob(f"*/{MANIFEST}"))
    return [manifest.parent for manifest in manifests if manifest.parent.name not in wanted]


def _target_folder(
    config: ModelConfig,
    target: Target,
    steps: Sequence[Step],
    manifests: Mapping[str, Manifest],
    source: Manifest,
    workspace: Workspace,
) -> Folder:
    files: dict[str, FileEntry] = {}
    components: dict[str, dict[str, Json]] = {}
    for step in steps:
        if step.stage != "context" or step.target != target or step.component is None:
            continue
        manifest = manifests[step.id]
        files |= manifest.files
        buckets = components.setdefault(step.component, {})
        facts = manifest.facts
        buckets[str(facts["bucket"])] = _bucket(config, step, manifest, manifests)
    soc = catalog.resolve(target.soc)
    raw: dict[str, Json] = {
        "schema_version": SCHEMA_VERSION,
        "model": config.name,
        "source": _source(config, source, workspace),
        "target": {
            "name": target.soc,
            "soc": soc.chip,
            "soc_model": soc.soc_model,
            "htp_arch": soc.htp_arch,
            "vtcm_mb": target.vtcm_mb,
        },
        "tools": {
            "onnxruntime": package_version("onnxruntime"),
            "onnxruntime-qnn": package_version("onnxruntime-qnn"),
            "qairt": qairt_version(),
        },
        "components": {name: {"buckets": [*buckets.values()]} for name, buckets in components.items()},
    }
    return Folder(workspace.artifacts / config.name / target.soc, files, _text(raw))


def _bucket(config: ModelConfig, step: Step, manifest: Manifest, manifests: Mapping[str, Manifest]) -> Json:
    facts = manifest.facts
    assert step.component is not None
    return {
        "axes": facts["axes"],
        "context_model": facts["context_model"],
        "binaries": facts["binaries"],
        "files": _entries(manifest.files),
        "inputs": facts["inputs"],
        "outputs": facts["outputs"],
        "padding": dict(config.components[step.component].padding),
        "partitions": facts["partitions"],
        "cpu_nodes": facts["cpu_nodes"],
        "compatibility": facts["compatibility"],
        "quantization": _quantization(step, manifests),
        "rewrites": _rewrites(step, manifests),
        "verification": _verification(step, manifests),
    }


def _qdq_folder(
    config: ModelConfig, steps: Iterable[Step], manifests: Mapping[str, Manifest], workspace: Workspace
) -> Folder:
    """QDQ models in one folder, with what a search found. Blobs have names of their own; equal ones are one file."""
    files: dict[str, FileEntry] = {}
    components: dict[str, dict[str, Json]] = {}
    for step in steps:
        assert step.component is not None
        assert step.bucket is not None
        bucket = step.bucket.on(_axes_of(step, manifests))
        model = f"{step.component}_{bucket.name}.onnx"
        manifest = manifests[step.id]
        own = {model if name == "model.onnx" else name: entry for name, entry in manifest.files.items()}
        if precision := manifests.get(f"precision:{config.name}/{step.component}"):
            own[f"{step.component}_quantization.yaml"] = precision.files["quantization.yaml"]
        files |= own
        components.setdefault(step.component, {})[bucket.name] = {
            "axes": dict(bucket.axes),
            "model": model,
            "files": _entries(own),
            "inputs": manifest.facts["inputs"],
            "outputs": manifest.facts["outputs"],
            "quantization": _quantization(step, manifests),
        }
    raw: dict[str, Json] = {
        "schema_version": SCHEMA_VERSION,
        "model": config.name,
        "components": {name: {"buckets": [*buckets.values()]} for name, buckets in components.items()},
    }
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


def _rewrites(step: Step, manifests: Mapping[str, Manifest]) -> dict[str, Json]:
    """Those that changed the model, and in how many places."""
    applied = manifests[report.sibling(step, "rewrite")].facts["applied"]
    assert isinstance(applied, dict)
    return {name: count for name, count in applied.items() if count}


def _verification(step: Step, manifests: Mapping[str, Manifest]) -> Json:
    """What was measured on the CPU and on the emulator; null for what was not."""
    verify = manifests.get(report.sibling(step, "verify"))
    emulate = manifests.get(report.emulation(step))
    return {"cpu": dict(verify.facts) if verify else None, "emulator": dict(emulate.facts) if emulate else None}


def _source(config: ModelConfig, fetch: Manifest, workspace: Workspace) -> Json:
    files: dict[str, Json] = {name: entry.sha256 for name, entry in fetch.files.items()}
    if isinstance(config.source, LocalSource):
        return {"hub": None, "revision": None, "files": files}
    hub = config.source.hub
    return {"hub": hub, "revision": pinned_revision(hub, config.source.revision, workspace.pins), "files": files}


def _text(raw: Mapping[str, Json]) -> bytes:
    return json.dumps(raw, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _same(path: Path, entry: FileEntry, workspace: Workspace) -> bool:
    try:
        return path.stat().st_size == entry.bytes and workspace.memo.sha256(path) == entry.sha256
    except OSError:
        return False


def _names_in(manifest: Path) -> set[str]:
    """File names that a manifest of ours lists; never a path that leaves its folder."""
    try:
        raw = json.loads(manifest.read_bytes())
        listed = set(_files(raw["components"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return set()
    return {name for name in listed if name == Path(name).name and name not in (".", "..")}


def _files(components: Mapping[str, Mapping[str, Sequence[Mapping[str, Mapping[str, object]]]]]) -> Iterator[str]:
    for component in components.values():
        for bucket in component["buckets"]:
            yield from bucket["files"]
