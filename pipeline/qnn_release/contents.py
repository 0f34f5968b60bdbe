"""The files of an open release. The hash of each is compared with release.json before anything reads it."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable
from pathlib import Path

from .errors import DamagedError, FormatError
from .index import MAX_INDEX_BYTES, NAME, Index

_CHUNK_BYTES = 1 << 20


class Contents:
    """A folder with the files of a release. Safe to use from several threads."""

    def __init__(self, folder: Path, index: Index) -> None:
        self.folder = folder
        self.index = index
        self._lock = threading.Lock()
        self._verified: dict[str, None] = {}

    def path(self, name: str) -> Path:
        """Where a file of the release is."""
        return self.folder / name

    def verify(self, names: Iterable[str]) -> None:
        """Hash those of these files that were not hashed yet; raises DamagedError for the first that is wrong."""
        for name in names:
            with self._lock:
                if name not in self._verified:
                    self._check(name)
                    self._verified[name] = None

    @property
    def verified(self) -> tuple[str, ...]:
        """The files whose hashes were found right, in the order in which they were hashed."""
        with self._lock:
            return tuple(self._verified)

    def _check(self, name: str) -> None:
        entry = self.index.files[name]
        path = self.path(name)
        try:
            found = path.stat().st_size
            if found == entry.bytes and sha256(path) == entry.sha256:
                return
        except OSError as error:
            raise damaged(name, path, error.strerror or str(error)) from error
        size = f"it has {found} bytes, not {entry.bytes}" if found != entry.bytes else "its SHA-256 differs"
        raise damaged(name, path, size)


def read_index(folder: Path) -> Index:
    """The index of a release that is a folder; raises FormatError if there is none."""
    path = folder / NAME
    try:
        with path.open("rb") as stream:
            text = stream.read(MAX_INDEX_BYTES + 1)
    except OSError as error:
        raise FormatError(
            "this folder is no release",
            where=str(folder),
            why=f"{NAME}: {error.strerror or error}",
            next="name the folder or the archive that packaging left",
        ) from error
    return parse_index(text)


def parse_index(text: bytes) -> Index:
    """The index in the bytes of a release.json. Raises FormatError if they are too many, or no index."""
    if len(text) > MAX_INDEX_BYTES:
        raise FormatError("release.json is too large", where=NAME, why=f"it has more than {MAX_INDEX_BYTES} bytes")
    return Index.parse(text)


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb", buffering=0) as stream:
        digest, buffer = hashlib.sha256(), memoryview(bytearray(_CHUNK_BYTES))
        while count := stream.readinto(buffer):
            digest.update(buffer[:count])
        return digest.hexdigest()


def damaged(name: str, where: Path, why: str) -> DamagedError:
    """The error for a file that is not the one that release.json names."""
    return DamagedError(
        f"{name} is not the file that the release names",
        where=str(where),
        why=f"{why}; QNN would load a damaged binary without an error, so it was not loaded",
        next="get the release again; if this folder was unpacked from an archive, delete it and open the archive",
    )
