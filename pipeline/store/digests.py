"""Computes digests of files, and remembers them with each file's stat: an unchanged file is never read twice."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pipeline.model import Json
from pipeline.processes import stopping
from pipeline.store import cache_file
from pipeline.store.files_read import RACY_NS, note_file, stamp_of_status

_CHUNK = 1 << 20
MEMBER = "entries"
"""The name under which the values are in a memo's file."""


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes as hex, read in chunks; raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as stream:
        while chunk := stream.read(_CHUNK):
            stopping.check()
            digest.update(chunk)
    return digest.hexdigest()


def copy_hashed(source: Path, destination: Path) -> str:
    """Copy a file's bytes and return their SHA-256 as hex, in one read; raises OSError."""
    digest = hashlib.sha256()
    with source.open("rb", buffering=0) as reader, destination.open("wb", buffering=0) as writer:
        while chunk := reader.read(_CHUNK):
            stopping.check()
            digest.update(chunk)
            left = memoryview(chunk)
            while left:
                left = left[writer.write(left) :]
    return digest.hexdigest()


def walk(folder: Path) -> Iterator[Path]:
    """Every regular file under `folder` except hidden files and caches, sorted by relative POSIX path."""
    found = [
        path
        for path in folder.rglob("*")
        if path.is_file() and not any(part.startswith((".", "__")) for part in path.relative_to(folder).parts)
    ]
    return iter(sorted(found, key=lambda path: path.relative_to(folder).as_posix()))


class StatMemo:
    """Values computed from one file each, kept until the file's size, mtime, ctime or inode changes.

    Several threads may use it. If the memo's own file is lost or damaged, values are computed again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._kept = False
        self._entries: dict[str, list[Json]] = cache_file.read(path, MEMBER)
        self._dirty = not self._entries and path.is_file()  # it is damaged, and written anew

    def value(self, path: Path, what: str, compute: Callable[[Path], Json]) -> Json:
        """`compute(path)`, or its last result if the file is unchanged; `what` names the computation."""
        note_file(path)
        stamp = stamp_of_status(path.stat())
        entry_name = f"{what}\0{os.path.abspath(path)}"
        with self._lock:
            known = self._entries.get(entry_name)
        if known is not None and known[0] == stamp:
            return known[1]
        value = compute(path)
        if stamp_of_status(path.stat()) == stamp and time.time_ns() - max(path.stat().st_mtime_ns, 0) > RACY_NS:
            with self._lock:
                self._entries[entry_name] = [stamp, value]
                self._dirty = True
        return value

    def sha256(self, path: Path) -> str:
        """SHA-256 of a file, or, for a folder, of its files' relative names and digests."""
        if path.is_dir():
            for folder, _, _ in os.walk(path):
                note_file(folder)
            listing = "".join(f"{self.sha256(file)}  {file.relative_to(path).as_posix()}\n" for file in walk(path))
            return hashlib.sha256(listing.encode()).hexdigest()
        return str(self.value(path, "sha256", sha256_file))

    def remember(self, path: Path, sha256: str) -> None:
        """Note the digest of a file that was renamed into place just now, when nobody can have changed it yet."""
        with self._lock:
            self._entries[f"sha256\0{os.path.abspath(path)}"] = [stamp_of_status(path.stat()), sha256]
            self._dirty = True

    def recorded(self, path: Path) -> str | None:
        """The last known SHA-256 of a file, whether or not the file is still the same."""
        with self._lock:
            known = self._entries.get(f"sha256\0{os.path.abspath(path)}")
        return str(known[1]) if known else None

    def forget(self, path: Path) -> None:
        """Drop the digest of a file that was found damaged, so that the file is read again whatever its stat says."""
        with self._lock:
            self._entries.pop(f"sha256\0{os.path.abspath(path)}", None)
            self._dirty = True

    def keep(self) -> None:
        """Leave the file as it is from now on: a dry run changes nothing, and must not repair what it should find."""
        self._kept = True

    def save(self) -> None:
        """Write the memo if it changed. If it can't be written, the next build computes again."""
        with self._lock:
            if not self._dirty or self._kept:
                return
            content: dict[str, Json] = {**self._entries}
            self._dirty = False
        cache_file.write(self._path, MEMBER, content)
