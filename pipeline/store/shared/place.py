"""What a place to share outputs in can do, and the plainest one: a folder that machines can reach.

A place knows nothing of manifests and keys; it has files under names such as `objects/ab/<sha256>`. What goes wrong is
raised as whatever it is: :mod:`pipeline.shared.tier` makes words of it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from pipeline.storage.durable import listed, sync_file, sync_folder
from pipeline.system import stopping

Moved = Callable[[int], None]
"""Told of bytes as they arrive or leave. It raises StoppedError when nobody waits for the rest."""
_CHUNK = 1 << 20
_LEFT_S = 2 * 86400
"""How old what is half-written must be to be taken for what the dead left: other machines' clocks are not ours."""
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES, errno.EXDEV)


class StoppedError(Exception):
    """What was being moved is not wanted any more. An Exception, as libraries tidy up after no other."""


class MismatchError(Exception):
    """A file has another size than it should, or is none."""


class Place(Protocol):
    """Where outputs are shared. Used from several threads."""

    def read(self, name: str, limit: int) -> bytes | None:
        """At most so many bytes of a file from its start; None if it is not there."""

    def size(self, name: str) -> int | None:
        """Bytes of a file; None if it is not there."""

    def fetch(self, name: str, destination: Path, size: int, moved: Moved) -> bool:
        """Copy a file here; False if it is not there. Raises MismatchError as soon as it has another size."""

    def send(self, source: Path, name: str, moved: Moved) -> None:
        """Copy a file there; who reads it meanwhile sees what was there before."""

    def create(self, name: str, data: bytes) -> bool:
        """Write a small file that is not there yet; False if it is, as far as that can be told."""

    def replace(self, name: str, data: bytes) -> None:
        """Write a small file, whether or not it is there."""

    def remove(self, name: str) -> None:
        """Delete a file."""

    def collect(self) -> None:
        """Delete what the dead left half-written, where that is seen."""


@dataclass(frozen=True)
class FolderPlace:
    """A folder, on this machine or mounted. It is made when something is written; the folder it is in is not."""

    root: Path

    def read(self, name: str, limit: int) -> bytes | None:
        """At most so many bytes of a file from its start; None if it is not there."""
        try:
            with self._opened(name) as stream:
                data = bytearray()
                while len(data) < limit and (chunk := stream.read(min(_CHUNK, limit - len(data)))):
                    data += chunk  # what is mounted may give less than it has
                return bytes(data)
        except FileNotFoundError:
            return None

    def size(self, name: str) -> int | None:
        """Bytes of a file; None if there is no file."""
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
        """Copy a file to another name first, sync it, and rename it."""
        temporary, target = self._temporary(), self._target(name)
        with stopping.undone(lambda: temporary.unlink(missing_ok=True)):
            with source.open("rb", buffering=0) as reader, temporary.open("xb", buffering=0) as writer:
                _copy(reader, writer, moved)
            sync_file(temporary)
            os.replace(temporary, target)
            sync_folder(target.parent)

    def create(self, name: str, data: bytes) -> bool:
        """Write a small file that is not there yet; False if it is."""
        temporary, target = self._temporary(), self._target(name)
        with stopping.undone(lambda: temporary.unlink(missing_ok=True)):
            self._write(temporary, data)
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
        temporary, target = self._temporary(), self._target(name)
        with stopping.undone(lambda: temporary.unlink(missing_ok=True)):
            self._write(temporary, data)
            os.replace(temporary, target)
            sync_folder(target.parent)

    def remove(self, name: str) -> None:
        """Delete a file."""
        (self.root / name).unlink()

    def collect(self) -> None:
        """Delete what was left half-written days ago: its writer is dead, as nothing takes that long."""
        with contextlib.suppress(OSError):
            for path in listed(self.root / "tmp"):
                if path.lstat().st_mtime < time.time() - _LEFT_S:
                    path.unlink()

    def _opened(self, name: str) -> BinaryIO:
        """A file opened for reading. Not blocked by what is none: a pipe would wait for a writer."""
        descriptor = os.open(self.root / name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise MismatchError("it is not a file")
        return os.fdopen(descriptor, "rb", buffering=0)

    def _temporary(self) -> Path:
        with contextlib.suppress(FileExistsError):
            self.root.mkdir()
        folder = self.root / "tmp"
        folder.mkdir(exist_ok=True)
        return folder / uuid.uuid4().hex

    def _target(self, name: str) -> Path:
        target = self.root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    def _write(self, temporary: Path, data: bytes) -> None:
        with temporary.open("xb") as stream:
            stream.write(data)
        sync_file(temporary)


def _copy(reader: BinaryIO, writer: BinaryIO, moved: Moved) -> None:
    while chunk := reader.read(_CHUNK):
        left = memoryview(chunk)
        while left:
            left = left[writer.write(left) :]
        moved(len(chunk))
