"""Artifacts on disk against their manifests: every file is hashed, whatever is remembered of it."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from pipeline.artifact_folders import MANIFEST, Folder
from pipeline.artifacts import claimed, listed
from pipeline.digests import sha256_file
from pipeline.durable import is_temporary
from pipeline.findings import LEFT, NOT_BUILT, PUT_BACK, Finding
from pipeline.workspace import Workspace


def check_artifacts(
    expected: Mapping[Path, Folder], models: Collection[str], workspace: Workspace
) -> Iterator[Finding]:
    """What is wrong in `artifacts/` of these models; `expected` has the folders that the next build would write.

    A damaged file's digest is forgotten, so that the next build looks at the file.
    """
    found = {path.parent for path in workspace.artifacts.glob(f"*/*/{MANIFEST}")}
    known = {path for path in expected if path.is_dir() or workspace.memo.recorded(path / MANIFEST)}
    for path in sorted(found | known):
        done = PUT_BACK if path.parent.name in models else NOT_BUILT
        yield from _check_folder(path, expected.get(path), done, workspace)


def _check_folder(path: Path, expected: Folder | None, done: str, workspace: Workspace) -> Iterator[Finding]:
    manifest = path / MANIFEST
    present, digests = listed(path), claimed(manifest)
    if fault := _manifest_fault(manifest, expected, bool(digests), workspace.memo.recorded(manifest)):
        yield Finding(manifest, fault, done)
        workspace.memo.forget(manifest)
        digests = {name: entry.sha256 for name, entry in expected.files.items()} if expected else {}
    elif not digests:
        return  # a folder of somebody else's
    for name, sha256 in sorted(digests.items()):
        if problem := _file_fault(path / name, sha256):
            yield Finding(path / name, problem, done)
            workspace.memo.forget(path / name)
    for name in sorted(present - {MANIFEST, *digests}) if digests else ():
        if not is_temporary(name):
            yield Finding(path / name, "it is not of any build", LEFT, is_wrong=False)


def _manifest_fault(path: Path, expected: Folder | None, is_ours: bool, recorded: str | None) -> str:
    """What is wrong with a manifest that is neither the one that is due nor, as far as known, the one of last time."""
    try:
        found = path.read_bytes()
    except OSError:
        return "it is missing"
    if expected is not None and found == expected.manifest:
        return ""
    if recorded is None and expected is None:
        return ""  # nothing is known: what it says of its files may be right
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
