"""Works out which files belong into `artifacts/<model>/`, and what manifest.json says of them.

artifacts/<model>/<target>/    context models and binaries for that target alone
artifacts/<model>/socs/        context models whose binaries hold a context for each of several targets
artifacts/<model>/qdq/         the QDQ models that contexts were compiled from
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pipeline.config.load import Auto, Bucket, LocalSource, ModelConfig, Quantization, Target
from pipeline.config.quantization import FOR_SEARCH
from pipeline.contracts import calibrate, climb, context, export, ingest, quantize, rewrite
from pipeline.errors import StoreError
from pipeline.frozen import dataclass
from pipeline.inputs.pins import pinned_revision
from pipeline.model import FileEntry, Json, Manifest
from pipeline.plan import climbing, stage_params
from pipeline.plan.keys import package_version, qairt_version
from pipeline.plan.own_buckets import OwnBuckets
from pipeline.plan.resolve import resolve
from pipeline.plan.steps import Step
from pipeline.plan.workspace import Workspace
from pipeline.qnn import catalog
from pipeline.release.archives import engine_files
from pipeline.release.archives.index import constants_of, text_of
from pipeline.release.archives.input_domains import with_domains
from pipeline.report import report
from pipeline.store.manifests import read_manifest

SCHEMA_VERSION = 3
MANIFEST = "manifest.json"
QDQ = "qdq"
SOCS = "socs"

_NOT_REPEATED = frozenset({"forecasts", "heard", "lengths", "order", "quiet_order", "sample_s", "silent", "spans"})
"""Facts of `verify` that manifest.json does not repeat: only later steps use them, or they have another place there."""


@dataclass(frozen=True)
class Folder:
    """What one folder of artifacts should hold: payloads by file name, and the text of its manifest."""

    path: Path
    files: Mapping[str, FileEntry]
    manifest: bytes


def folders(
    config: ModelConfig, steps: Sequence[Step], workspace: Workspace, missing: Sequence[str] = ()
) -> list[Folder]:
    """The folders that these steps of a model should leave behind.

    `missing` are components that failed; the manifests name them.

    Raises:
        StoreError: a step has no output.
    """
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
        if step.climb and (climbed := _climbed(step, workspace)):
            manifests[_climb_of(step)] = climbed
    source = _source(config, manifests[f"fetch:{config.name}"], workspace)
    by_folder: dict[str, list[Step]] = {}
    for step in steps:
        if step.stage == "context" and manifests[step.id].read(context.Facts.from_json).parts:
            name = step.target.soc if step.target else SOCS
            by_folder.setdefault(name, []).append(step)
    found = [
        _context_folder(config, name, made, steps, manifests, source, missing, workspace)
        for name, made in by_folder.items()
    ]
    quantized = [step for step in steps if step.stage == "quantize"]
    if quantized:
        found.append(_qdq_folder(config, quantized, manifests, workspace))
    return found


def _context_folder(
    config: ModelConfig,
    name: str,
    steps: Sequence[Step],
    others: Sequence[Step],
    manifests: Mapping[str, Manifest],
    source: Json,
    missing: Sequence[str],
    workspace: Workspace,
) -> Folder:
    """The folder for these context steps, all for the same targets; `others` are all steps of the model."""
    files: dict[str, FileEntry] = {}
    components: dict[str, Json] = {}
    buckets: dict[str, list[Json]] = {}
    for step in steps:
        assert step.component is not None
        manifest = manifests[step.id]
        files |= {**manifest.files, **engine_files.files_of(step, others, manifests)}
        constants = constants_of(manifests[step.ingests[step.component]].read(ingest.Facts.from_json))
        listed = buckets.setdefault(step.component, [])
        form = manifest.read(context.Facts.from_json).form
        engines = engine_files.engines_of(step, others, manifests)
        components.setdefault(step.component, {"packing": form, **constants, **engines, "buckets": listed})
        exported = _exported(step, manifests)
        for made in exported.values():
            files |= made.files
        for bucket, part in _parts(step, manifest, manifests):
            entry = _bucket(step, bucket, part, manifests, exported)
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
        **({"missing": [*missing]} if missing else {}),
    }
    return Folder(workspace.artifacts / config.name / name, files, text_of(raw))


def _target(target: Target) -> Json:
    soc = catalog.resolve(target.soc)
    return {
        "name": target.soc,
        "soc": soc.chip,
        "soc_model": soc.soc_model,
        "htp_arch": soc.htp_arch,
        "vtcm_mb": target.vtcm_mb,
        **({"compiler_options": {**target.compiler_options}} if target.compiler_options else {}),
        **({"runtime_options": {**target.runtime_options}} if target.runtime_options else {}),
    }


def _parts(step: Step, manifest: Manifest, manifests: Mapping[str, Manifest]) -> Iterator[tuple[Bucket, Manifest]]:
    """Each bucket of the config and what a context step made for it, the smallest bucket first."""
    own = _own_buckets(step, manifests)
    seen = set()
    for bucket in step.config.buckets if step.bucket is None else (step.bucket,):
        name = own.own(bucket).name
        part = manifest.part(name)
        if part is not None and name not in seen:
            seen.add(name)
            yield bucket, part


def _exported(step: Step, manifests: Mapping[str, Manifest]) -> dict[str, Manifest]:
    """The output of each `export` step that was made from the contexts of a context step, by kind."""
    target = step.target.soc if step.target else ""
    names = {str(kind): f"export:{step.config.name}/{step.component}/{kind}/{target}" for kind in step.config.outputs}
    return {kind: manifests[name] for kind, name in names.items() if name in manifests}


def _bucket(
    step: Step,
    bucket: Bucket,
    part: Manifest,
    manifests: Mapping[str, Manifest],
    exported: Mapping[str, Manifest],
) -> Json:
    """What manifest.json says of a bucket; `exported` has the outputs of its contexts' `export` steps, by kind."""
    made = part.read(context.PartFacts.from_json)
    assert step.component is not None
    graphs = {kind: other.read(export.Facts.from_json).graphs for kind, other in exported.items()}
    others = {each[made.bucket].file: exported[kind].files[each[made.bucket].file] for kind, each in graphs.items()}
    return {
        "axes": dict(made.axes),
        "context_model": made.context_model,
        "binaries": [*made.binaries],
        "files": engine_files.entries_of({**part.files, **others}),
        **({"exports": {kind: each[made.bucket].to_json() for kind, each in graphs.items()}} if graphs else {}),
        "inputs": _inputs(step, bucket, made, manifests),
        "outputs": part.facts["outputs"],
        "padding": dict(step.config.components[step.component].padding),
        "partitions": made.partitions,
        "cpu_nodes": part.facts["cpu_nodes"],
        "compatibility": made.compatibility,
        "cost": made.cost.to_json(),
        "quantization": _quantization(step, manifests),
        "forecasts": _forecasts(step, bucket, manifests),
        "rewrites": _rewrites(step, bucket, manifests),
        "verification": _verification(step, bucket, manifests),
    }


def _inputs(step: Step, bucket: Bucket, made: context.PartFacts, manifests: Mapping[str, Manifest]) -> list[Json]:
    """The inputs of a context, with their domains."""
    assert step.component is not None
    quantized = manifests.get(report.quantization(step))
    part = quantized.part(made.bucket) if quantized else None
    in_float = part.read(quantize.PartFacts.from_json).float_nodes if part else None
    tables = manifests[step.ingests[step.component]].read(ingest.Facts.from_json).tables
    calibrated = manifests.get(f"calibrate:{step.config.name}/{step.component}")
    seen = calibrated.read(calibrate.Facts.from_json).seen if calibrated else {}
    takes_nan = _rewritten(step, bucket, manifests).takes_nan or ()
    return with_domains(made.inputs, tables or {}, in_float, _rewrites(step, bucket, manifests), seen, takes_nan)


def _forecasts(step: Step, bucket: Bucket, manifests: Mapping[str, Manifest]) -> Json:
    told = report.forecasts_of(step, bucket, manifests)
    return None if told is None else [each.to_json() for each in told]


def _qdq_folder(
    config: ModelConfig, steps: Iterable[Step], manifests: Mapping[str, Manifest], workspace: Workspace
) -> Folder:
    """The folder of QDQ models, under the names that `quantize` gave them, and of the scheme that a search found."""
    files: dict[str, FileEntry] = {}
    components: dict[str, Json] = {}
    for step in steps:
        assert step.component is not None
        found: dict[str, FileEntry] = {}
        found_by = (_climb_of(step), f"precision:{config.name}/{step.component}")
        if precision := next((manifests[name] for name in found_by if name in manifests), None):
            found[f"{step.component}_quantization.yaml"] = precision.files["quantization.yaml"]
        files |= found
        buckets: list[Json] = []
        for bucket in _own_buckets(step, manifests).all:
            part = manifests[step.id].part(bucket.name)
            assert part is not None
            model = f"{step.component}_{bucket.name}.onnx"
            own = {model if name == "model.onnx" else name: entry for name, entry in part.files.items()}
            files |= own  # not of all parts: those of a language model's small twins are for the emulator
            buckets.append(
                {
                    "axes": dict(bucket.axes),
                    "model": model,
                    "files": engine_files.entries_of({**own, **found}),
                    "inputs": part.facts["inputs"],
                    "outputs": part.facts["outputs"],
                    "quantization": _quantization(step, manifests),
                }
            )
        components[step.component] = {"buckets": buckets}
    raw: dict[str, Json] = {"schema_version": SCHEMA_VERSION, "model": config.name, "components": components}
    return Folder(workspace.artifacts / config.name / QDQ, files, text_of(raw))


def _own_buckets(step: Step, manifests: Mapping[str, Manifest]) -> OwnBuckets:
    """The buckets of the step's component."""
    own = OwnBuckets.of_step(step, manifests)
    assert own is not None
    return own


def _climb_of(step: Step) -> str:
    """The key among the manifests for the result of a component's climb."""
    return f"{climbing.STAGE}:{step.config.name}/{step.component}"


def _climbed(step: Step, workspace: Workspace) -> Manifest | None:
    """The result of the climb of a quantize step's component; None if it did not climb."""
    resolved = resolve(step, workspace)
    return workspace.store.get(resolved.climb_key) if resolved else None


def _quantization(step: Step, manifests: Mapping[str, Manifest]) -> dict[str, Json]:
    """The member `quantization` of a bucket: how numbers are stored, and how that was chosen."""
    assert step.component is not None
    quantization = step.config.components[step.component].quantization
    found: dict[str, Json] = {"scheme": report.scheme(step, manifests)}
    if climbed := manifests.get(_climb_of(step)):
        facts = climbed.read(climb.Facts.from_json)
        how = FOR_SEARCH if isinstance(quantization, Auto) else Quantization()
        tried: list[Json] = [attempt.to_json() for attempt in facts.attempts]
        return {**found, **facts.quantization.to_json(), "method": how.method, "climb": tried}
    match quantization:
        case Quantization():
            percentile = stage_params.percentile(quantization)
            spoken = step.config.language is not None
            scheme = stage_params.of_quantization(quantization, language=spoken)
            found |= {**scheme.to_json(), "method": quantization.method}
            return found if percentile is None else {**found, "percentile": percentile}
        case Auto():
            precision = manifests[f"precision:{step.config.name}/{step.component}"].facts
            return {**found, "precision": "auto", "search": dict(precision)}
        case _:
            return found


def _rewrites(step: Step, bucket: Bucket, manifests: Mapping[str, Manifest]) -> dict[str, Json]:
    """The rewrites that changed the model, each with the number of places."""
    return {name: count for name, count in _rewritten(step, bucket, manifests).applied.items() if count}


def _rewritten(step: Step, bucket: Bucket, manifests: Mapping[str, Manifest]) -> rewrite.Facts:
    return manifests[report.of_bucket(step, "rewrite", bucket)].read(rewrite.Facts.from_json)


def _verification(step: Step, bucket: Bucket, manifests: Mapping[str, Manifest]) -> Json:
    """Figures from the CPU, and from the emulator for each target; None if nothing was measured."""
    measured = report.of_bucket(step, "verify", bucket) in manifests
    emulated: dict[str, Json] = {}
    for target in step.targets:
        if emulate := manifests.get(report.emulation(step, bucket, target)):
            emulated[target.soc] = dict(emulate.facts)
    facts = report.on_the_cpu(step, bucket, manifests, manifests).to_json()
    cpu = {name: fact for name, fact in facts.items() if name not in _NOT_REPEATED} if measured else None
    return {"cpu": cpu, "emulator": emulated or None}


def _source(config: ModelConfig, fetch: Manifest, workspace: Workspace) -> Json:
    files: dict[str, Json] = {name: entry.sha256 for name, entry in fetch.files.items()}
    if isinstance(config.source, LocalSource):
        return {"hub": None, "revision": None, "files": files}
    hub = config.source.hub
    return {"hub": hub, "revision": pinned_revision(hub, config.source.revision, workspace.pins), "files": files}
