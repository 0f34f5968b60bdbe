"""`artifacts/<model>/` on disk: is what should be there, there; make it so; remove it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from pipeline.artifact_folders import MANIFEST, QDQ, SOCS, Folder
from pipeline.errors import StoreError
from pipeline.model import FileEntry
from pipeline.qnn import catalog
from pipeline.store import disk_errors, write_atomically
from pipeline.workspace import Workspace


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
            workspace.memo.remember(folder.path / name, folder.files[name].sha256)
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
    removed = [path for folder in _ours(model, workspace) for path in remove_folder(folder)]
    root = workspace.artifacts / model
    with disk_errors(root, "artifacts can't be removed"):
        if root.is_dir() and not any(root.iterdir()):
            root.rmdir()
    return removed


def remove_folder(folder: Path) -> list[Path]:
    """Delete the files that the folder's manifest names, and the folder if that empties it; the files deleted."""
    with disk_errors(folder, "artifacts can't be removed"):
        paths = [folder / name for name in sorted(_names_in(folder / MANIFEST)) if (folder / name).is_file()]
        paths.append(folder / MANIFEST)
        for path in paths:
            path.unlink()
        if not any(folder.iterdir()):
            folder.rmdir()
    return paths


def leftovers(model: str, wanted: Collection[Folder], workspace: Workspace) -> list[Path]:
    """Folders of artifacts of ours that the model no longer has: of a target, or of a form of binaries."""
    paths = {folder.path for folder in wanted}
    return [folder for folder in _ours(model, workspace) if folder not in paths]


def _ours(model: str, workspace: Workspace) -> list[Path]:
    """The folders that builds made: by their names, and by what their manifests say. Others are not touched."""
    names = {QDQ, SOCS, *catalog.names()}
    manifests = sorted((workspace.artifacts / model).glob(f"*/{MANIFEST}"))
    return [path.parent for path in manifests if path.parent.name in names and _model_of(path) == model]


def _model_of(manifest: Path) -> str | None:
    """The model that a manifest is of; None if it is not one of ours."""
    try:
        raw = json.loads(manifest.read_bytes())
        return str(raw["model"]) if isinstance(raw["schema_version"], int) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


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
