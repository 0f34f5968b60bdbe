"""Repos of the local hub: files with the hashes a hub knows them by, commits, branches and tags."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path

# What the hub's default .gitattributes keeps in LFS, as far as models like ours have it.
LFS_PATTERNS = ("*.onnx", "*.onnx_data*", "*.bin", "*.safetensors", "*.npz", "*.npy", "*.zip")


class Blob:
    """The content of one file, in memory or on disk."""

    def __init__(self, name: str, content: bytes | Path) -> None:
        self.content = content
        self.lfs = any(fnmatch(name, pattern) for pattern in LFS_PATTERNS)
        self.bytes = len(content) if isinstance(content, bytes) else content.stat().st_size

    def open(self) -> io.BytesIO | io.BufferedReader:
        return io.BytesIO(self.content) if isinstance(self.content, bytes) else self.content.open("rb")

    @cached_property
    def sha256(self) -> str:
        with self.open() as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    @cached_property
    def oid(self) -> str:
        """The id of the git blob; for a file in LFS that of its pointer."""
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {self.bytes}\n".encode()
        head = f"blob {len(pointer) if self.lfs else self.bytes}\0".encode()
        with io.BytesIO(pointer) if self.lfs else self.open() as stream:
            return hashlib.file_digest(stream, lambda: hashlib.sha1(head, usedforsecurity=False)).hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.oid


@dataclass
class Repo:
    """A repo; `gated` and `private` ones serve files to the tokens in `allowed` only."""

    name: str
    gated: bool = False
    private: bool = False
    allowed: set[str] = field(default_factory=set)
    writers: set[str] = field(default_factory=set)
    """The tokens that may commit."""
    commits: dict[str, dict[str, Blob]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def commit(self, files: Mapping[str, bytes | Path] | Path, *, commit: str = "", branch: str = "main") -> str:
        """Make these all the files, and the branch point here; the commit's id follows from content and parent."""
        if isinstance(files, Path):
            root = files
            found: Mapping[str, bytes | Path] = {
                path.relative_to(root).as_posix(): path for path in sorted(root.rglob("*")) if path.is_file()
            }
        else:
            found = files
        blobs = {name: Blob(name, content) for name, content in sorted(found.items())}
        listing = "".join(f"{blob.oid} {name}\n" for name, blob in blobs.items())
        text = f"{self.branches.get(branch, '')}\n{listing}"
        commit = commit or hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        self.commits[commit] = blobs
        self.branches[branch] = commit
        return commit

    def find(self, revision: str) -> str | None:
        """The commit that a revision is at."""
        known = self.branches | self.tags | {commit: commit for commit in self.commits}
        return known.get(revision)

    def tree(self, commit: str, folder: str, *, recursive: bool) -> list[dict[str, object]]:
        """The entries below a folder, as the API lists them."""
        prefix = f"{folder}/" if folder else ""
        entries: dict[str, dict[str, object]] = {}
        for name, blob in self.commits[commit].items():
            if not name.startswith(prefix):
                continue
            parents = name.removeprefix(prefix).split("/")[:-1]
            for depth in range(1, len(parents) + 1):
                path = prefix + "/".join(parents[:depth])
                entries[path] = {"type": "directory", "path": path, "size": 0, "oid": "0" * 40}
            entries[name] = file_entry(name, blob)
        return [entry for path, entry in entries.items() if recursive or "/" not in path.removeprefix(prefix)]


def file_entry(name: str, blob: Blob) -> dict[str, object]:
    """A file as the API lists it."""
    lfs = {"lfs": {"oid": blob.sha256, "size": blob.bytes, "pointerSize": 130}} if blob.lfs else {}
    return {"type": "file", "path": name, "size": blob.bytes, "oid": blob.oid, **lfs}
