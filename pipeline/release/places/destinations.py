"""The interface of a destination of releases, and the plainest destination: a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from pipeline.errors import StoreError
from pipeline.frozen import dataclass
from pipeline.model import FileEntry
from pipeline.store.digests import copy_hashed, sha256_file
from pipeline.store.durable import disk_errors, sync_file, write_atomically
from pipeline.store.locks import held
from pipeline.store.payloads import MISSING

ALTERED = "its SHA-256 is another one"
"""The fault of an archive that has the right size and the wrong content."""


class Destination(Protocol):
    """A place that archives are published to."""

    def read(self, name: str) -> bytes | None:
        """The bytes of a small file; None if there is none."""

    def fault(self, name: str, entry: FileEntry) -> str:
        """What is wrong with an archive there, checked from its first byte to its last; "" if nothing is."""

    def send(self, archive: Path, index_name: str, index: bytes, there: bytes | None) -> str | None:
        """Send the archive, then its index unless that is there. `there` is the index as :meth:`read` returned it.

        Returns text to add to the message about it; None if somebody else published there since :meth:`read`.
        """


@dataclass(frozen=True)
class FolderDestination:
    """A folder on this machine, or one that is mounted."""

    folder: Path

    def read(self, name: str) -> bytes | None:
        """The bytes of a small file; None if there is none."""
        with disk_errors(self.folder, "the folder to publish to can't be read"):
            try:
                return (self.folder / name).read_bytes()
            except FileNotFoundError:
                return None

    def fault(self, name: str, entry: FileEntry) -> str:
        """Read an archive and say what is wrong with it; "" if nothing is."""
        path = self.folder / name
        with disk_errors(self.folder, "the folder to publish to can't be read"):
            try:
                if path.stat().st_size != entry.bytes:
                    return f"it has {path.stat().st_size} bytes, not {entry.bytes}"
                return "" if sha256_file(path) == entry.sha256 else ALTERED
            except FileNotFoundError:
                return MISSING

    def send(self, archive: Path, index_name: str, index: bytes, there: bytes | None) -> str | None:
        """Copy the archive to a temporary name, sync it, read it back and rename it; then write the index.

        A lock lets one process at a time publish under a name, so that an index never names another's archive.
        """
        temporary, lock = (self.folder / f".{archive.name}.{end}" for end in ("tmp", "lock"))
        with disk_errors(self.folder, "the folder to publish to can't be written"):
            self.folder.mkdir(exist_ok=True)
            with held(lock, f"another process that publishes {archive.name} to {self.folder}"):
                if self.read(index_name) != there:
                    return None
                try:
                    sha256 = copy_hashed(archive, temporary)
                    sync_file(temporary)
                    if sha256_file(temporary) != sha256:
                        raise StoreError(
                            f"{archive.name} arrived as something else",
                            where=str(self.folder),
                            why="what is read back has another SHA-256",
                            remedy="run the same command again; if it stays so, check that disk",
                        )
                    temporary.replace(self.folder / archive.name)
                finally:
                    temporary.unlink(missing_ok=True)
                if there is None:
                    write_atomically(self.folder / index_name, index)
        return ""
