"""What commits of hub repos held when they were first fetched, kept in the store: a commit's files never change.

The key of a fetch has the code in it, so the manifests of an older version of it don't tell; this does, whatever the
version, and also when the HF cache was deleted meanwhile. Needs no network.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pipeline.model import FileEntry
from pipeline.storage import sealed_json
from pipeline.storage.durable import write_atomically

_FILES = "files"


def path_of(store: Path, repo: str, commit: str) -> Path:
    """The file that remembers a commit."""
    return store / "hub" / f"{repo.replace('/', '--')}@{commit}.json"


def changed(path: Path, files: Mapping[str, FileEntry]) -> tuple[str, str, str] | None:
    """The first of these files that a commit held with another content: its name, and both SHA-256."""
    known = _read(path)
    for name, entry in sorted(files.items()):
        if known.get(name, entry.sha256) != entry.sha256:
            return name, known[name], entry.sha256
    return None


def remember(path: Path, files: Mapping[str, FileEntry], folder: Path) -> None:
    """Add what a commit holds; it is written in `folder` before it is moved into place. Raises OSError."""
    known = _read(path)
    now = known | {name: entry.sha256 for name, entry in files.items()}
    if now != known:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, sealed_json.dump({_FILES: {**now}}), folder=folder)


def _read(path: Path) -> dict[str, str]:
    """What is remembered; nothing of a file that is missing or damaged, which costs this check and no more."""
    try:
        return dict(sealed_json.load_member(path.read_bytes(), _FILES))
    except (OSError, ValueError):
        return {}
