"""Compares `artifacts/<model>/` on disk with what belongs there, writes what differs, and removes folders."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.model import FileEntry
from pipeline.plan.workspace import Workspace
from pipeline.qnn import catalog
from pipeline.release.archives.engine_files import MEMBER
from pipeline.release.published.artifact_folders import MANIFEST, QDQ, SOCS, Folder
from pipeline.report.page import PAGE
from pipeline.store import locks
from pipeline.store.digests import StatMemo
from pipeline.store.durable import disk_errors, is_temporary, sync_folder, visible, write_atomically
from pipeline.store.files_read import note_file

_OUTDATED = "is outdated"


def is_published(folder: Folder, workspace: Workspace) -> bool:
    """Whether the folder on disk holds what it should. A file is hashed only if its stat changed.

    Tells of damaged files, and of files that no build wrote, which stay.
    """
    note_file(folder.path)
    if not folder.path.is_dir():
        return False
    faults = _faults(folder, workspace)
    if faults:
        with disk_errors(workspace.build), _writing(workspace):
            faults = _faults(folder, workspace)  # another build may have been writing them
    tell, name = workspace.store.tell, folder.path.relative_to(workspace.root).as_posix()
    if faults is not None:
        for file, why in faults.items():
            tell(f"damaged: {name}/{file} {why}; it is put back")
        for file in foreign(folder, listed(folder.path)):
            tell(f"not of this build, and left alone: {name}/{file}")
    return faults == {} and not any(map(is_temporary, listed(folder.path)))


def _faults(folder: Folder, workspace: Workspace) -> dict[str, str] | None:
    """What is wrong with each file, by name; None if an older build wrote the folder."""
    present = listed(folder.path)
    fault = _manifest_fault(folder, present, workspace)
    if fault == _OUTDATED:
        return None
    faults = {MANIFEST: fault} if fault else {}
    for file, entry in folder.files.items():
        if not _same(folder.path / file, entry, workspace):
            faults[file] = "is not what was published" if file in present else "is missing"
    return faults


@contextmanager
def _writing(workspace: Workspace) -> Iterator[None]:
    """Hold the lock with which one build at a time writes artifacts of a checkout."""
    folder = workspace.scratch.parent
    folder.mkdir(parents=True, exist_ok=True)
    with locks.held(folder / "artifacts.lock", "artifacts/", tell=workspace.store.tell):
        yield


def foreign(folder: Folder, present: Collection[str]) -> list[str]:
    """The names in the folder that no build wrote."""
    return sorted(name for name in {*present} - {*folder.files, MANIFEST} if not is_temporary(name))


def tell_strangers(model: str, wanted: Collection[Folder], workspace: Workspace) -> None:
    """Tell the user of files and folders beside a model's folders of artifacts that no build made."""
    ours = {PAGE, *(folder.name for folder in (*_ours(model, workspace), *(folder.path for folder in wanted)))}
    for name in sorted(listed(workspace.artifacts / model) - ours):
        workspace.store.tell(f"not of this build, and left alone: artifacts/{model}/{name}")


def publish(folder: Folder, workspace: Workspace) -> None:
    """Write payloads that differ, then the manifest, then remove files that an older manifest of ours names.

    Raises:
        StoreError: the disk can't be written.
        DamagedError: a payload in the store is corrupt. A folder that is half written has no manifest.
    """
    manifest = folder.path / MANIFEST
    with (
        disk_errors(folder.path, "the artifacts folder can't be written"),
        _writing(workspace),
        workspace.scratch.folder() as scratch,
    ):
        ours = {*claimed(manifest)}
        stale = [name for name, entry in folder.files.items() if not _same(folder.path / name, entry, workspace)]
        if stale:
            manifest.unlink(missing_ok=True)  # it would be wrong while payloads change
        for name in stale:
            workspace.store.export(folder.files[name], folder.path / name, scratch)
            workspace.memo.remember(folder.path / name, folder.files[name].sha256)
        if stale:
            sync_folder(folder.path)
        write_atomically(manifest, folder.manifest, folder=scratch)
        workspace.memo.remember(manifest, hashlib.sha256(folder.manifest).hexdigest())
        for name in (ours - set(folder.files)) | {*filter(is_temporary, listed(folder.path))}:
            (folder.path / name).unlink(missing_ok=True)


def is_whole(folder: Path) -> bool:
    """Whether a build in which nothing failed published this folder."""
    try:
        return not json.loads((folder / MANIFEST).read_bytes()).get("missing")
    except (OSError, ValueError, AttributeError):
        return False


def remove(model: str, workspace: Workspace) -> list[Path]:
    """Delete the artifacts of a model that manifests of ours name. Returns the deleted files."""
    removed = [path for folder in _ours(model, workspace) for path in remove_folder(folder, workspace.memo)]
    workspace.memo.save()
    root = workspace.artifacts / model
    with disk_errors(root, "artifacts can't be removed"):
        if root.is_dir() and not any(root.iterdir()):
            root.rmdir()
    return removed


def remove_folder(folder: Path, memo: StatMemo) -> list[Path]:
    """Delete the files that a folder's manifest names, and an empty folder. Returns the deleted files."""
    with disk_errors(folder, "artifacts can't be removed"):
        paths = [folder / name for name in sorted(claimed(folder / MANIFEST)) if (folder / name).is_file()]
        paths.append(folder / MANIFEST)
        for path in paths:
            path.unlink(missing_ok=True)  # another build of this checkout may delete it, too
            memo.forget(path)
        with contextlib.suppress(FileNotFoundError):
            if not any(folder.iterdir()):
                folder.rmdir()
    return paths


def of_no_config(models: Collection[str], workspace: Workspace) -> list[Path]:
    """Folders of artifacts that builds made of models other than these."""
    names = sorted(name for name in listed(workspace.artifacts) if name not in models)
    return [folder for name in names for folder in _ours(name, workspace)]


def leftovers(model: str, wanted: Collection[Folder], workspace: Workspace) -> list[Path]:
    """Folders that builds made of targets or packings that the model no longer has."""
    paths = {folder.path for folder in wanted}
    return [folder for folder in _ours(model, workspace) if folder not in paths]


def _ours(model: str, workspace: Workspace) -> list[Path]:
    """The folders of a model that builds made, as their names and their manifests tell."""
    names = {QDQ, SOCS, *catalog.names()}
    note_file(workspace.artifacts / model)
    manifests = sorted((workspace.artifacts / model).glob(f"*/{MANIFEST}"))
    return [path.parent for path in manifests if path.parent.name in names and _model_of(path) == model]


def _model_of(manifest: Path) -> str | None:
    """The model that a manifest names; None for a file that is no manifest of ours."""
    note_file(manifest)
    try:
        raw = json.loads(manifest.read_bytes())
        return str(raw["model"]) if isinstance(raw["schema_version"], int) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _manifest_fault(folder: Folder, present: Collection[str], workspace: Workspace) -> str:
    """What is wrong with the folder's manifest; "" if nothing is, `_OUTDATED` if an older build wrote it.

    In a copied checkout the memo does not know the manifest. It then counts as outdated if it is true of its folder,
    else as damaged.
    """
    path = folder.path / MANIFEST
    note_file(path)
    recorded = workspace.memo.recorded(path)
    if MANIFEST not in present:
        return "is missing" if recorded or present else _OUTDATED
    try:
        found = path.read_bytes()
    except OSError as error:
        return f"can't be read ({error.strerror})"
    if found == folder.manifest:
        return ""
    ours = hashlib.sha256(found).hexdigest() == recorded if recorded else _is_as_it_says(folder.path, workspace)
    return _OUTDATED if ours else "is not what was published"


def _is_as_it_says(folder: Path, workspace: Workspace) -> bool:
    """Whether a folder holds the files that its manifest claims."""
    said = claimed(folder / MANIFEST)
    try:
        return bool(said) and all(workspace.memo.sha256(folder / name) == sha256 for name, sha256 in said.items())
    except OSError:
        return False


def listed(folder: Path) -> set[str]:
    """The names in a folder; none if it can't be read."""
    note_file(folder)
    return {path.name for path in visible(folder)}


def _same(path: Path, entry: FileEntry, workspace: Workspace) -> bool:
    note_file(path)
    try:
        return path.stat().st_size == entry.bytes and workspace.memo.sha256(path) == entry.sha256
    except OSError:
        return False


def claimed(manifest: Path) -> dict[str, str]:
    """As :func:`claims`, but also empty for a manifest that can't be read."""
    try:
        return claims(manifest)
    except OSError:
        return {}


def claims(manifest: Path) -> dict[str, str]:
    """SHA-256 by file name as a manifest of ours lists them; never a path that leaves its folder.

    Empty for a file that is missing or no manifest of ours. Raises OSError when it can't be read.
    """
    try:
        raw = json.loads(manifest.read_bytes())
        found = {name: str(entry["sha256"]) for name, entry in _files(raw["components"])}
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    return {name: sha256 for name, sha256 in found.items() if name == Path(name).name and name not in (".", "..")}


def _files(components: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, object]]]:
    for component in components.values():
        for listed in (*component["buckets"], *filter(None, [component.get(MEMBER)])):
            yield from listed["files"].items()
