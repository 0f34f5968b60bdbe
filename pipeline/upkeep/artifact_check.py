"""Compares artifacts on disk with their manifests, by hashing every file again."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from pipeline.plan.workspace import Workspace
from pipeline.release.published.artifact_folders import MANIFEST, Folder
from pipeline.release.published.artifacts import claimed
from pipeline.store.digests import sha256_file
from pipeline.store.durable import folders_in, is_temporary, listed
from pipeline.store.finding import LEFT, NOT_BUILT, PUT_BACK, FsckFinding, unread


def check_artifacts(
    expected: Mapping[Path, Folder], models: Collection[str], workspace: Workspace, looked_at: set[Path]
) -> Iterator[FsckFinding]:
    """Findings on the artifacts of these models; `expected` has the folders that the next build would write.

    The digest of a damaged file is forgotten, so that the next build reads the file. That of a missing file is kept, so
    that it counts as missing until the next build puts it back. The paths of files that are there are added to
    `looked_at`.
    """
    found: set[Path] = set()
    for folder in (workspace.artifacts, *_folders(workspace.artifacts)):
        try:
            found |= {path for path in folders_in(folder) if folder != workspace.artifacts and _has_manifest(path)}
        except OSError as error:
            yield unread(folder, error)
    recorded = workspace.memo.recorded
    known = {
        path
        for path, folder in expected.items()
        if path.is_dir() or any(recorded(path / name) for name in (MANIFEST, *folder.files))
    }
    for path in sorted(found | known):
        done = PUT_BACK if path.parent.name in models else NOT_BUILT
        try:
            yield from _check_folder(path, expected.get(path), done, workspace, looked_at)
        except OSError as error:
            yield unread(path, error)


def _folders(artifacts: Path) -> list[Path]:
    try:
        return folders_in(artifacts)
    except OSError:
        return []


def _has_manifest(folder: Path) -> bool:
    """Whether there is a manifest; also true if the system can't tell."""
    try:
        (folder / MANIFEST).lstat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def _check_folder(
    path: Path, expected: Folder | None, done: str, workspace: Workspace, looked_at: set[Path]
) -> Iterator[FsckFinding]:
    """Findings on one folder. Raises OSError when it can't be read."""
    manifest = path / MANIFEST
    present, digests = {file.name for file in listed(path)}, claimed(manifest)
    if fault := _manifest_fault(manifest, expected, bool(digests), workspace.memo.recorded(manifest)):
        yield FsckFinding(manifest, fault, done)
        if MANIFEST in present:
            workspace.memo.forget(manifest)
        digests = {name: entry.sha256 for name, entry in expected.files.items()} if expected else {}
    elif not digests:
        return  # the folder is not ours
    looked_at |= {path / name for name in present & {MANIFEST, *digests}}
    for name, sha256 in sorted(digests.items()):
        if problem := _file_fault(path / name, sha256):
            yield FsckFinding(path / name, problem, done)
            if name in present:
                workspace.memo.forget(path / name)
    for name in sorted(present - {MANIFEST, *digests}) if digests else ():
        if not is_temporary(name):
            yield FsckFinding(path / name, "it is not of any build", LEFT, is_wrong=False)


def _manifest_fault(path: Path, expected: Folder | None, is_ours: bool, recorded: str | None) -> str:
    """What is wrong with a manifest; "" if it is the one that is expected, or the one that was published last."""
    try:
        found = path.read_bytes()
    except FileNotFoundError:
        return "it is missing"
    except OSError as error:
        return f"it can't be read: {error.strerror}"
    if expected is not None and found == expected.manifest:
        return ""
    if recorded is None and expected is None:
        return ""  # nothing is known of it: its own list of files may be right
    if is_ours and hashlib.sha256(found).hexdigest() == recorded:
        return ""
    return "it is not what was published"


def _file_fault(path: Path, sha256: str) -> str:
    try:
        return "" if sha256_file(path) == sha256 else "its SHA-256 is not the one in the manifest"
    except FileNotFoundError:
        return "it is missing"
    except OSError as error:
        return f"it can't be read: {error.strerror}"
