"""Payloads of a store on disk: what seals them, what is wrong with one, how one is taken in.

A payload's modification time is its seal: a second that its digest names, set when its bytes were hashed. Whoever
writes to it breaks the seal, so one look tells that a payload is as it was left. What no seal shows, such as a bit that
the disk lost, is found by hashing: each payload that a step uses is hashed once in every build.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

from pipeline.model import FileEntry
from pipeline.storage.digests import sha256_file
from pipeline.storage.durable import remove, sync_file

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
        """What is wrong with a payload, "" if nothing is. One whose seal is broken is hashed, and sealed if it is good.

        With `hashed` it is hashed in any case, unless this process has done so. Raises OSError when it can't be read.
        """
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
        """What is wrong with a payload that is there, whatever its seal says; a good one is sealed.

        Raises OSError when it can't be read.
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
                continue  # another build put a good one in its place, or is writing to it
            after = path.stat()
            if after.st_mtime_ns == seal_ns:  # as before, or another step, which needs it too, was faster
                self._hashed[sha256] = _stamp(after)
                return ""
            if after.st_mtime_ns == before.st_mtime_ns:
                break
        with contextlib.suppress(OSError):  # on a read-only disk it stays as it is
            os.utime(path, ns=(seal_ns, seal_ns))
        self._hashed[sha256] = _stamp(path.lstat())
        return ""

    def adopt(
        self, path: Path, hashed: FileEntry | None = None, *, replaced: Callable[[Path, str], None] = lambda *_: None
    ) -> FileEntry:
        """Move a file here, unless the same is here already; `replaced` is told of a bad one in its place, and why.

        `hashed` is what the file is, if it was hashed just now.
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
                remove(destination)  # what is read-only is not replaced there
            try:
                os.replace(path, destination)
            except PermissionError:  # Windows does not replace what somebody reads; another build may have made it good
                if self.fault(entry):
                    raise
            self._hashed[entry.sha256] = _stamp(destination.lstat())
        return entry

    def _path(self, sha256: str) -> str:
        return f"{self.root}/{sha256[:2]}/{sha256}"


def _seal_s(sha256: str) -> int:
    """The modification time that seals a payload: even seconds, which every file system can keep, of 2001 to 2018."""
    return 1_000_000_000 + 2 * int(sha256[:7], 16)


def _is_sealed(status: os.stat_result, entry: FileEntry) -> bool:
    return (
        status.st_size == entry.bytes
        and status.st_mtime_ns == _seal_s(entry.sha256) * 1_000_000_000
        and stat.S_ISREG(status.st_mode)
    )


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_size, status.st_mtime_ns, status.st_ino
