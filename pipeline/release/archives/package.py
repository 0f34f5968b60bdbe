"""Makes the archives of a model from what its steps left in the store."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from pipeline.config.load import ModelConfig, ReleaseSettings
from pipeline.contracts import ingest
from pipeline.errors import ConfigError
from pipeline.frozen import dataclass
from pipeline.graph.language.names import TABLE
from pipeline.model import FileEntry, Json, Manifest
from pipeline.plain_text import did_you_mean
from pipeline.plan.keys import payload_digest, tool_versions
from pipeline.plan.steps import Step
from pipeline.plan.workspace import Workspace
from pipeline.release.archives import index, notices, on_disk, provenance
from pipeline.release.archives.archive import Member
from pipeline.release.archives.index import Part
from pipeline.release.published import skipped
from pipeline.release.published.artifact_folders import QDQ, SOCS, Folder, folders
from pipeline.report.page import PAGE
from pipeline.stage_table import STAGES
from pipeline.store.digests import sha256_file
from pipeline.store.durable import write_atomically
from pipeline.store.manifests import read_manifest

_PRECISION = "_quantization.yaml"


@dataclass(frozen=True)
class Packaged:
    """An archive that is up to date.

    `written` is false if it was up to date before. `was_signed` tells that the archive before it had a signature.
    """

    path: Path
    sha256: str
    written: bool
    signed: bool
    was_signed: bool
    lapses: tuple[skipped.Lapse, ...]


def archive_paths(config: ModelConfig, targets: Collection[str], workspace: Workspace) -> dict[str, Path]:
    """The paths of the archives for these targets, by target; "" stands for one archive for all targets.

    Raises:
        ConfigError: the config asks for one archive for all targets, and `targets` lacks some.
    """
    release = release_of(config)
    folder, stem = on_disk.folder_of(workspace), f"{config.name}-{release.version}"
    if release.split == "none":
        if missing := [target.soc for target in config.targets if target.soc not in targets]:
            raise ConfigError(
                f"a release of {config.name} is for all of its targets, and {', '.join(missing)} was left out",
                where="command line: targets=",
                remedy="leave targets= out, or have an archive for each target with release: {split: targets}",
            )
        return {"": folder / f"{stem}{on_disk.SUFFIX}"}
    chosen = [target.soc for target in config.targets if target.soc in targets]
    return {target: folder / f"{stem}-{target}{on_disk.SUFFIX}" for target in chosen}


def package(
    config: ModelConfig,
    steps: Sequence[Step],
    targets: Collection[str],
    workspace: Workspace,
) -> Iterator[Packaged]:
    """Write the archives of a model for these targets, but for those that are up to date.

    Raises:
        ConfigError: the config has no release, or names a file or an artifact that does not exist.
        VerificationError: an artifact failed or skipped a gate, and is not named under release.unverified.
        StoreError: an output is missing or corrupt; an archive can't be written.
    """
    for target, path in archive_paths(config, targets, workspace).items():
        own = [step for step in steps if not target or not step.targets or target in {t.soc for t in step.targets}]
        with ExitStack() as work:
            yield _package(config, own, target, path, workspace, work)


def release_of(config: ModelConfig) -> ReleaseSettings:
    """The config's release; raises ConfigError if it has none."""
    if config.release is None:
        raise ConfigError(
            f"{config.name} has no release",
            where=config.place(),
            remedy="say in the config what goes into it, at least  release: {version: '1.0'}",
        )
    return config.release


def _package(
    config: ModelConfig,
    steps: Sequence[Step],
    target: str,
    path: Path,
    workspace: Workspace,
    work: ExitStack,
) -> Packaged:
    from pipeline.release.archives.sbom import (
        sbom,  # with signing a quarter of a second, which listing tasks need not take
    )
    from pipeline.release.signing import signed

    release = release_of(config)
    found = folders(config, steps, workspace)
    manifests = {step.id: manifest for step in steps if (manifest := read_manifest(workspace.current(step)))}
    contexts = [part for part in _contexts(found, target, workspace, work) if part.members]
    qdq = next((_part(folder, QDQ, workspace) for folder in found if folder.path.name == QDQ and release.qdq), None)
    declared = {
        name: manifests[f"ingest:{config.name}/{name}"].read(ingest.Facts.from_json) for name in config.components
    }
    components = index.components_of(contexts, qdq, declared, config.fixed)

    where = config.place("release")
    lapses = [*skipped.failed(steps, manifests), *skipped.skipped(components)]
    skipped.check_names(release.unverified, skipped.artifacts_of(components), where)
    skipped.may_ship(lapses, release.unverified, config.name, where)

    members = {
        part.path(name): member
        for part in (*contexts, *([qdq] if qdq else []))
        for name, member in part.members.items()
    }
    members |= _files(release, where, manifests[f"fetch:{config.name}"], workspace)
    tools = dict(tool for stage in STAGES for tool in tool_versions(stage).items())
    about = {
        "schema_version": index.SCHEMA_VERSION,
        "model": config.name,
        "version": release.version,
        "source": contexts[0].manifest["source"],
        "tools": dict(sorted({**contexts[0].manifest["tools"], **tools}.items())),
    }
    members[PAGE] = Member.of(_page(config, steps, manifests, workspace))
    members[index.SBOM] = Member.of(sbom(about, members))
    text = config.path.read_bytes()
    raw: dict[str, Json] = {
        **about,
        "targets": index.targets_of(contexts),
        "components": {**components},
        "config": {"sha256": hashlib.sha256(text).hexdigest(), "text": text.decode()},
        "keys": {step: manifest.key for step, manifest in sorted(manifests.items())},
        "outputs": {step: payload_digest(manifest) for step, manifest in sorted(manifests.items())},
        "gates": {
            "skipped": [lapse.json() for lapse in lapses if not lapse.measured],
            "failed": [lapse.json() for lapse in lapses if lapse.measured],
        },
        "files": index.listed(members),
    }
    members[index.INDEX] = Member.of(index.text_of(raw))
    statement = index.text_of(provenance.statement(raw, members))
    members[index.PROVENANCE] = Member.of(statement)
    if envelope := signed(statement, os.environ):
        members[index.SIGNATURE] = Member.of(envelope)

    was_signed = index.SIGNATURE in on_disk.names(path)
    sha256, written = on_disk.write(path, config.name, members, workspace)
    return Packaged(path, sha256, written, index.SIGNATURE in members, was_signed, (*lapses,))


def _page(config: ModelConfig, steps: Sequence[Step], manifests: Mapping[str, Manifest], workspace: Workspace) -> bytes:
    """The report on what is packaged. It says nothing about a run, as the same archive can be made at any time."""
    from pipeline.report.page.compose import model_page
    from pipeline.report.page.source import PageSource
    from pipeline.report.page.write import BuiltModel, artifacts_of

    artifacts = dict(artifacts_of(BuiltModel(config, steps, manifests.keys(), manifests)))
    return model_page(PageSource(config, steps, manifests.keys(), manifests, workspace, artifacts))


def _contexts(found: Sequence[Folder], target: str, workspace: Workspace, work: ExitStack) -> Iterator[Part]:
    """The folders of contexts. For one target, binaries for several targets are pruned to it."""
    for folder in found:
        name = folder.path.name
        part = _part(folder, f"contexts/{name}", workspace)
        if name == QDQ:
            continue
        if name == SOCS and target:
            yield _pruned(part, target, work.enter_context(workspace.store.scratch()), workspace)
        else:
            yield part


def _part(folder: Folder, prefix: str, workspace: Workspace) -> Part:
    # A table of embeddings for the host is packaged once: QDQ models use the one beside the contexts.
    left_out = (_PRECISION, TABLE) if prefix == QDQ else (_PRECISION,)
    files = {name: entry for name, entry in folder.files.items() if not name.endswith(left_out)}
    return Part(prefix, json.loads(folder.manifest), {name: _stored(entry, workspace) for name, entry in files.items()})


def _pruned(part: Part, target: str, work: Path, workspace: Workspace) -> Part:
    from pipeline.release.prune import prune_folder  # imports onnx

    whole, out = work / "whole", work / "pruned"
    given = {name: FileEntry(member.sha256, member.size) for name, member in part.members.items()}
    workspace.store.place(Manifest("release", "", given, {}), whole)
    write_atomically(whole / "manifest.json", json.dumps(part.manifest).encode(), durable=False)
    manifest = prune_folder(whole, [target], out)
    files = {
        name for listed in manifest["components"].values() for bucket in listed["buckets"] for name in bucket["files"]
    }
    members = {name: Member(sha256_file(out / name), (out / name).stat().st_size, out / name) for name in sorted(files)}
    return Part(f"contexts/{target}", manifest, members)


def _files(release: ReleaseSettings, where: str, fetched: Manifest, workspace: Workspace) -> dict[str, Member]:
    """The files of the source that the config names, and the licences. `where` says where the config names them."""
    found = {}
    for folder, names in (("files", release.files), ("licenses/model", release.licenses)):
        for name in names:
            if name not in fetched.files:
                raise ConfigError(
                    f"the source has no file {name}{did_you_mean(name, fetched.files)}",
                    where=where,
                    remedy="correct the name under release",
                )
            found[f"{folder}/{name}"] = _stored(fetched.files[name], workspace)
    for name, path in notices.notices().items():
        found[f"licenses/{notices.PACKAGE}/{name}"] = Member.of(path.read_bytes())
    return found


def _stored(entry: FileEntry, workspace: Workspace) -> Member:
    return Member(entry.sha256, entry.bytes, workspace.store.object_path(entry.sha256))
