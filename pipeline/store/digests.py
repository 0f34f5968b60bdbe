"""Content digests of files, remembered by what `stat` says so that an unchanged file is never read twice."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pipeline.model import Json
from pipeline.storage import sealed_json
from pipeline.storage.durable import write_atomically
from pipeline.storage.scratch import Scratch
from pipeline.system import stopping

_CHUNK = 1 << 20
# A file changed again within the clock's granularity keeps its mtime; such a stat is not remembered (git's "racy"
# rule). 100 ms is above the timer tick of every supported kernel and below what a person notices.
_RACY_NS = 100_000_000
MEMBER = "entries"
"""What the file of a memo has."""


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
    """Every regular file under `folder`, sorted by relative POSIX path; hidden files and caches are not content."""
    found = [
        path
        for path in folder.rglob("*")
        if path.is_file() and not any(part.startswith((".", "__")) for part in path.relative_to(folder).parts)
    ]
    return iter(sorted(found, key=lambda path: path.relative_to(folder).as_posix()))


class StatMemo:
    """Values computed from one file, kept until the file's size, mtime, ctime or inode changes.

    Losing the memo file costs time, never correctness; a damaged one is as good as lost. Safe to use from several
    threads.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._dirty = False
        self._entries = _load(path)

    def value(self, path: Path, what: str, compute: Callable[[Path], Json]) -> Json:
        """`compute(path)`, or what it returned last time if the file is the same; `what` names the computation."""
        stamp = _stamp(path)
        entry_name = f"{what}\0{os.path.abspath(path)}"
        with self._lock:
            known = self._entries.get(entry_name)
        if known is not None and known[0] == stamp:
            return known[1]
        value = compute(path)
        if _stamp(path) == stamp and time.time_ns() - max(path.stat().st_mtime_ns, 0) > _RACY_NS:
            with self._lock:
                self._entries[entry_name] = [stamp, value]
                self._dirty = True
        return value

    def sha256(self, path: Path) -> str:
        """SHA-256 of a file, or, for a folder, of its files' relative names and digests."""
        if path.is_dir():
            listing = "".join(f"{self.sha256(file)}  {file.relative_to(path).as_posix()}\n" for file in walk(path))
            return hashlib.sha256(listing.encode()).hexdigest()
        return str(self.value(path, "sha256", sha256_file))

    def remember(self, path: Path, sha256: str) -> None:
        """The digest of a file that was renamed into place just now, so that nobody can have changed it since."""
        with self._lock:
            self._entries[f"sha256\0{os.path.abspath(path)}"] = [_stamp(path), sha256]
            self._dirty = True

    def recorded(self, path: Path) -> str | None:
        """The last known SHA-256 of a file, whether or not the file is still the same."""
        with self._lock:
            known = self._entries.get(f"sha256\0{os.path.abspath(path)}")
        return str(known[1]) if known else None

    def forget(self, path: Path) -> None:
        """Have a file read again, whatever its stat says: it was found to be damaged."""
        with self._lock:
            self._entries.pop(f"sha256\0{os.path.abspath(path)}", None)
            self._dirty = True

    def save(self) -> None:
        """Write the memo if it changed; a memo that can't be written is only a slower next time."""
        with self._lock:
            if not self._dirty:
                return
            data = sealed_json.dump({MEMBER: {**self._entries}}, indent=None)
            self._dirty = False
        with contextlib.suppress(OSError), Scratch(self._path.parent / "tmp").folder() as folder:
            write_atomically(self._path, data, durable=False, folder=folder)


def _load(path: Path) -> dict[str, list[Json]]:
    try:
        entries: dict[str, list[Json]] = sealed_json.load_member(path.read_bytes(), MEMBER)
    except (OSError, ValueError):
        return {}
    return entries


def _stamp(path: Path) -> str:
    status = path.stat()
    return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}:{status.st_ino}"
