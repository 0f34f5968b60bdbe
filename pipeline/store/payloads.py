"""Keeps the payloads of a store: seals them, checks them, and takes in new ones.

A payload's modification time is its seal: a second computed from its digest, set after its bytes were hashed. Writing
to the file breaks the seal, so its stat tells whether it was changed. A seal does not show a bit that the disk lost;
hashing does, so each payload that a step uses is hashed once in every build.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

from pipeline.model import FileEntry
from pipeline.store.digests import sha256_file
from pipeline.store.durable import remove, sync_file
from pipeline.store.files_read import note_payload

MISSING = "it is missing"
_Stamp = tuple[int, int, int]


class Payloads:
    """The files under `root`, named by their SHA-256. Safe to use from several threads and processes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._hashed: dict[str, _Stamp] = {}  # by this process

    def path(self, sha256: str) -> Path:
        """Where the payload with this digest is, or would be."""
        return Path(self._path(sha256))

    def fault(self, entry: FileEntry, *, hashed: bool = False) -> str:
        """What is wrong with a payload; "" if nothing is. If its seal is broken, hashes it, and seals a good one.

        With `hashed`, hashes it even if it is sealed, unless this process did. Raises OSError if it can't be read.
        """
        note_payload(entry)
        path = self._path(entry.sha256)
        try:
            status = os.lstat(path)
            if not hashed and _is_sealed(status, entry):
                return ""
            if not stat.S_ISREG(status.st_mode):
                return "it is not a file"
            if status.st_size != entry.bytes:
                return f"it has {status.st_size} bytes, not {entry.bytes}"
            if self._hashed.get(entry.sha256) == _stamp(status):
                return ""
            return self.hashed_fault(entry.sha256)
        except FileNotFoundError:
            return MISSING

    def hashed_fault(self, sha256: str) -> str:
        """Hash a payload whatever its seal says. Returns what is wrong with it, "" if nothing is. Seals a good one.

        Raises OSError if it can't be read.
        """
        path = self.path(sha256)
        seal_ns = _seal_s(sha256) * 1_000_000_000
        while True:
            before = path.lstat()
            if not stat.S_ISREG(before.st_mode):
                return "it is not a file"
            if sha256_file(path) != sha256:
                if _stamp(path.lstat()) == _stamp(before):
                    return "its SHA-256 is not the one that it was stored under"
                continue  # another build has replaced it meanwhile
            after = path.stat()
            if after.st_mtime_ns == seal_ns:  # it was sealed before, or another step has just sealed it
                self._hashed[sha256] = _stamp(after)
                return ""
            if after.st_mtime_ns == before.st_mtime_ns:
                break
        with contextlib.suppress(OSError):  # a read-only disk keeps the old time
            os.utime(path, ns=(seal_ns, seal_ns))
        self._hashed[sha256] = _stamp(path.lstat())
        return ""

    def adopt(
        self, path: Path, hashed: FileEntry | None = None, *, replaced: Callable[[Path, str], None] = lambda *_: None
    ) -> FileEntry:
        """Move a file here unless the store has a good copy. Calls `replaced` with a bad copy and its fault.

        `hashed` is the file's digest and size if it was hashed just now.
        """
        entry = hashed or FileEntry(sha256_file(path), path.stat().st_size)
        destination = self.path(entry.sha256)
        if fault := self.fault(entry):
            if fault != MISSING:
                replaced(destination, fault)
            destination.parent.mkdir(parents=True, exist_ok=True)
            sync_file(path)
            os.utime(path, (_seal_s(entry.sha256),) * 2)
            path.chmod(0o444)
            if os.name == "nt":
                remove(destination)  # Windows replaces no read-only file
            try:
                os.replace(path, destination)
            except PermissionError:  # Windows replaces no file that is being read; another build may have replaced it
                if self.fault(entry):
                    raise
            self._hashed[entry.sha256] = _stamp(destination.lstat())
        return entry

    def _path(self, sha256: str) -> str:
        return f"{self.root}/{sha256[:2]}/{sha256}"


def _seal_s(sha256: str) -> int:
    """The modification time that seals a payload: an even second of 2001 to 2018, which every file system can store."""
    return 1_000_000_000 + 2 * int(sha256[:7], 16)


def _is_sealed(status: os.stat_result, entry: FileEntry) -> bool:
    return (
        status.st_size == entry.bytes
        and status.st_mtime_ns == _seal_s(entry.sha256) * 1_000_000_000
        and stat.S_ISREG(status.st_mode)
    )


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_size, status.st_mtime_ns, status.st_ino
