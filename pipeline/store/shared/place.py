"""The interface of a place to share outputs in, and the plainest such place: a folder that machines can reach.

A place knows no manifests and keys, only files with names such as `objects/ab/<sha256>`. It raises errors as they come;
:mod:`pipeline.store.shared.connection` puts them into words.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from pipeline.frozen import dataclass
from pipeline.processes import stopping
from pipeline.store.durable import listed, sync_file, sync_folder

Moved = Callable[[int], None]
"""Called with the number of bytes that arrived or left. Raises StoppedError when nobody waits for the rest."""
_CHUNK = 1 << 20
_LEFT_S = 2 * 86400
"""The age in seconds at which a half-written file counts as abandoned: days, as clocks of machines differ."""
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES, errno.EXDEV)


class StoppedError(Exception):
    """Nobody waits for the transfer any more. An Exception, because libraries tidy up only after those."""


class MismatchError(Exception):
    """A file has an unexpected size, or is no regular file."""


class SharedPlace(Protocol):
    """A place where outputs are shared. Several threads use it."""

    def read(self, name: str, limit: int) -> bytes | None:
        """At most `limit` bytes of a file from its start; None if it is not there."""

    def size(self, name: str) -> int | None:
        """The bytes of a file; None if it is not there."""

    def fetch(self, name: str, destination: Path, size: int, moved: Moved) -> bool:
        """Copy a file here; False if it is not there. Raises MismatchError as soon as it has another size."""

    def send(self, source: Path, name: str, moved: Moved) -> None:
        """Copy a file there; readers see the old file until the new one is complete."""

    def create(self, name: str, data: bytes) -> bool:
        """Write a small file unless there is one; False if there is, as far as the place can tell."""

    def replace(self, name: str, data: bytes) -> None:
        """Write a small file, whether or not it is there."""

    def remove(self, name: str) -> None:
        """Delete a file."""

    def collect(self) -> None:
        """Delete half-written files of processes that died, where they are visible."""


@dataclass(frozen=True)
class FolderPlace:
    """A folder, on this machine or mounted. Writing creates it, but not its parent."""

    root: Path

    def read(self, name: str, limit: int) -> bytes | None:
        """At most `limit` bytes of a file from its start; None if it is not there."""
        try:
            with self._opened(name) as stream:
                data = bytearray()
                while len(data) < limit and (chunk := stream.read(min(_CHUNK, limit - len(data)))):
                    data += chunk  # a mounted file system may return less than was asked for
                return bytes(data)
        except FileNotFoundError:
            return None

    def size(self, name: str) -> int | None:
        """The bytes of a file; None if there is no file."""
        try:
            status = os.stat(self.root / name)
        except FileNotFoundError:
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def fetch(self, name: str, destination: Path, size: int, moved: Moved) -> bool:
        """Copy a file here; False if it is not there. Raises MismatchError as soon as it has another size."""
        try:
            reader = self._opened(name)
        except FileNotFoundError:
            return False
        with reader, destination.open("wb", buffering=0) as writer:
            if (found := os.fstat(reader.fileno()).st_size) != size:
                raise MismatchError(f"it has {found} bytes, not {size}")
            _copy(reader, writer, moved)
        return True

    def send(self, source: Path, name: str, moved: Moved) -> None:
        """Copy a file to a temporary name, sync it, and rename it."""
        with self._temporary(name) as (temporary, target):
            with source.open("rb", buffering=0) as reader, temporary.open("xb", buffering=0) as writer:
                _copy(reader, writer, moved)
            _replace(temporary, target)

    def create(self, name: str, data: bytes) -> bool:
        """Write a small file unless there is one; False if there is."""
        with self._temporary(name) as (temporary, target):
            temporary.write_bytes(data)
            sync_file(temporary)
            try:
                os.link(temporary, target)  # unlike a rename, it fails where there is one
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                if os.path.lexists(target):
                    return False
                os.replace(temporary, target)
            sync_folder(target.parent)
        return True

    def replace(self, name: str, data: bytes) -> None:
        """Write a small file, whether or not it is there."""
        with self._temporary(name) as (temporary, target):
            temporary.write_bytes(data)
            _replace(temporary, target)

    def remove(self, name: str) -> None:
        """Delete a file."""
        (self.root / name).unlink()

    def collect(self) -> None:
        """Delete half-written files that are days old. No transfer takes that long, so their writers are dead."""
        with contextlib.suppress(OSError):
            for path in listed(self.root / "tmp"):
                if path.lstat().st_mtime < time.time() - _LEFT_S:
                    path.unlink()

    def _opened(self, name: str) -> BinaryIO:
        """A file opened for reading, without blocking: opening a pipe would wait for a writer."""
        descriptor = os.open(self.root / name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise MismatchError("it is not a file")
        return os.fdopen(descriptor, "rb", buffering=0)

    @contextmanager
    def _temporary(self, name: str) -> Iterator[tuple[Path, Path]]:
        """A path to write to, whose file is removed at the end, and the path of `name`. The folders of both exist."""
        with contextlib.suppress(FileExistsError):
            self.root.mkdir()
        temporary, target = self.root / "tmp" / uuid.uuid4().hex, self.root / name
        for path in (temporary, target):
            path.parent.mkdir(parents=True, exist_ok=True)
        with stopping.undone(lambda: temporary.unlink(missing_ok=True)):
            yield temporary, target


def _replace(temporary: Path, target: Path) -> None:
    """Rename a file over another, with both on the disk afterwards."""
    sync_file(temporary)
    os.replace(temporary, target)
    sync_folder(target.parent)


def _copy(reader: BinaryIO, writer: BinaryIO, moved: Moved) -> None:
    while chunk := reader.read(_CHUNK):
        left = memoryview(chunk)
        while left:
            left = left[writer.write(left) :]
        moved(len(chunk))
