"""Remembers in the store what commits of hub repos held when they were first fetched: a commit's files never change.

The key of a fetch counts our code, so manifests of an older version of ours can't be looked up. This record does not
depend on the version, nor on the HF cache, and needs no network.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pipeline.model import FileEntry
from pipeline.store import cache_file, locks, sealed_json
from pipeline.store.durable import write_atomically

_FILES = "files"


def path_of(store: Path, repo: str, commit: str) -> Path:
    """The file that remembers a commit."""
    return store / "hub" / f"{repo.replace('/', '--')}@{commit}.json"


def changed(path: Path, files: Mapping[str, FileEntry]) -> tuple[str, str, str] | None:
    """The first of these files whose content differs from the record: its name, and both SHA-256."""
    known = _read(path)
    for name, entry in sorted(files.items()):
        if known.get(name, entry.sha256) != entry.sha256:
            return name, known[name], entry.sha256
    return None


def remember(path: Path, files: Mapping[str, FileEntry], folder: Path) -> None:
    """Add files of a commit to its record, which is written in `folder` and then moved. Raises OSError.

    A lock keeps what another process adds meanwhile, after fetching other files of the commit.
    """
    digests = {name: entry.sha256 for name, entry in files.items()}
    if digests.items() <= _read(path).items():
        return
    lock = path.parents[1] / "locks" / f"hub-{path.stem}.lock"
    for folder_of in (path, lock):
        folder_of.parent.mkdir(parents=True, exist_ok=True)
    with locks.held(lock, "what a commit holds"):
        write_atomically(path, sealed_json.dump({_FILES: {**_read(path), **digests}}), folder=folder)


def _read(path: Path) -> dict[str, str]:
    """SHA-256 by file name; empty if the file is missing or damaged, which costs no more than this check."""
    return cache_file.read(path, _FILES)
