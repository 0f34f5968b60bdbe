"""What a place to publish to can do, and the plainest one: a folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pipeline.errors import StoreError
from pipeline.model import FileEntry
from pipeline.storage.digests import copy_hashed, sha256_file
from pipeline.storage.durable import disk_errors, write_atomically
from pipeline.storage.locks import held
from pipeline.storage.payloads import MISSING

ALTERED = "its SHA-256 is another one"
"""What is wrong with an archive whose bytes are others, of the same number."""


class Destination(Protocol):
    """A place that archives are published to."""

    def read(self, name: str) -> bytes | None:
        """A small file that is there; None if it is not."""

    def fault(self, name: str, entry: FileEntry) -> str:
        """What is wrong with an archive there, all of which is looked at; "" if nothing is."""

    def send(self, archive: Path, index_name: str, index: bytes, there: bytes | None) -> str | None:
        """Put the archive there, then its index, unless that is what is `there`, as :meth:`read` had it.

        What to add to a message about it; None if somebody else published there since.
        """


@dataclass(frozen=True)
class FolderDestination:
    """A folder on this machine, or one that is mounted."""

    folder: Path

    def read(self, name: str) -> bytes | None:
        """A small file that is there; None if it is not."""
        with disk_errors(self.folder, "the folder to publish to can't be read"):
            try:
                return (self.folder / name).read_bytes()
            except FileNotFoundError:
                return None

    def fault(self, name: str, entry: FileEntry) -> str:
        """What is wrong with an archive there, which is read; "" if nothing is."""
        path = self.folder / name
        with disk_errors(self.folder, "the folder to publish to can't be read"):
            try:
                if path.stat().st_size != entry.bytes:
                    return f"it has {path.stat().st_size} bytes, not {entry.bytes}"
                return "" if sha256_file(path) == entry.sha256 else ALTERED
            except FileNotFoundError:
                return MISSING

    def send(self, archive: Path, index_name: str, index: bytes, there: bytes | None) -> str | None:
        """Each under another name first, synced and renamed; what was copied is what was read, or nothing is there.

        One at a time publishes under a name, so that an index never names another's archive.
        """
        temporary, lock = (self.folder / f".{archive.name}.{end}" for end in ("tmp", "lock"))
        with disk_errors(self.folder, "the folder to publish to can't be written"):
            self.folder.mkdir(parents=True, exist_ok=True)
            with held(lock, f"another process that publishes {archive.name} to {self.folder}"):
                if self.read(index_name) != there:
                    return None
                try:
                    sha256 = copy_hashed(archive, temporary)
                    with temporary.open("r+b") as stream:
                        os.fsync(stream.fileno())
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
