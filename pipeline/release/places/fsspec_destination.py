"""Publishes to places that fsspec can write to: `s3://bucket/folder`, `gs://`, `sftp://` and others.

The library behind each finds credentials in its usual environment.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import TypeVar

from pipeline.errors import ConfigError, StoreError
from pipeline.frozen import dataclass
from pipeline.model import FileEntry
from pipeline.release.places.destinations import ALTERED
from pipeline.sizes import human_bytes
from pipeline.store.digests import sha256_file
from pipeline.store.payloads import MISSING
from pipeline.store.shared import fsspec_place
from pipeline.store.shared.call_timeouts import GoneError, Patience
from pipeline.store.shared.connection import Rarely, why
from pipeline.store.shared.fsspec_place import FsspecPlace, NoBucketError
from pipeline.store.shared.place import MismatchError, Moved
from pipeline.store.urls import protocol_of, redacted

WAITS_S = (0.5, 1.0, 2.0, 4.0)
"""Pauses between tries, in seconds; one try more than there are pauses."""
_INDEX_BYTES = 64 << 20
_FINAL = (
    FileNotFoundError,
    GoneError,
    IsADirectoryError,
    NoBucketError,
    NotADirectoryError,
    NotImplementedError,
    PermissionError,
    TypeError,
    ValueError,
)
_FINAL_NAMES = {"ParamValidationError", "NoCredentialsError", "PartialCredentialsError", "ProfileNotFound"}
"""Errors that no further try changes. Those by name belong to the client of S3, which may not be installed; any other
error of a library may pass."""
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class FsspecDestination:
    """A folder of a file system of fsspec, which is given up if it does not answer for some seconds."""

    place: FsspecPlace
    url: str
    """The URL without secrets."""
    _secret_url: str = field(repr=False)
    _patience: Patience = field(repr=False)

    @classmethod
    def of(cls, url: str) -> FsspecDestination:
        """The destination that a URL names. Raises ConfigError if its kind is unknown or its package is missing."""
        shown, opened = redacted(url), list[FsspecPlace]()
        if protocol_of(url) == "memory":
            raise ConfigError(
                f"what is published to {shown} is gone when this process ends",
                where="command line",
                remedy="name a folder, hf://owner/name, or a URL that keeps files, such as s3://bucket/folder",
            )
        patience = Patience(lambda: opened[0].size("index.json"))
        fsspec_place.load(url, shown)
        try:
            opened.append(patience.ask(lambda: FsspecPlace.of(url, shown)))
        except ConfigError:
            raise
        except Exception as error:  # errors of the libraries behind fsspec share no class
            raise _refused("the destination can't be opened", shown, why(error, url)) from None
        return cls(opened[0], shown, url, patience)

    def read(self, name: str) -> bytes | None:
        """The bytes of a small file; None if there is none."""
        return self._trying(lambda: self._patience.ask(lambda: self.place.read(name, _INDEX_BYTES)), name)

    def fault(self, name: str, entry: FileEntry) -> str:
        """Fetch an archive and say what is wrong with it; "" if nothing is."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, name)

            def fetch(moved: Moved) -> str:
                try:
                    return "" if self.place.fetch(name, path, entry.bytes, moved) else MISSING
                except MismatchError as error:
                    return str(error)

            fault = self._moved(fetch, f"reading {name} again", entry.bytes)
            return fault or ("" if sha256_file(path) == entry.sha256 else ALTERED)

    def send(self, archive: Path, index_name: str, index: bytes, there: bytes | None) -> str | None:
        """Send the archive and compare its size, then send the index if there is none."""
        name, whole = archive.name, archive.stat().st_size
        # This makes no folder first: in an object store that may try to make a bucket.
        self._moved(lambda moved: self.place.send(archive, name, moved), name, whole)
        found = self._trying(lambda: self._patience.ask(lambda: self.place.size(name)), name)
        if found != whole:
            raise StoreError(
                f"{name} arrived with {found} of {whole} bytes",
                where=self.url,
                remedy="run the same command again: without an index nobody takes it for a release",
            )
        create = lambda: self.place.create(index_name, index)  # noqa: E731
        if there is None and not self._trying(lambda: self._patience.ask(create), index_name):
            return "" if self.read(index_name) == index else None
        return ""

    def _moved(self, act: Callable[[Moved], _Answer], what: str, whole: int) -> _Answer:
        """What `act`, which moves a file, returns; prints its progress now and then."""

        def moved() -> _Answer:
            rarely = Rarely(lambda text: print(text, flush=True))
            return self._patience.move(
                act, lambda done: rarely(lambda: f"{what}: {human_bytes(done)} of {human_bytes(whole)}")
            )

        return self._trying(moved, what)

    def _trying(self, call: Callable[[], _Answer], what: str) -> _Answer:
        """What `call` returns, after more tries if it fails with an error that may pass."""
        for tries in range(len(WAITS_S) + 1):
            try:
                return call()
            except Exception as error:  # as above
                told = why(error, self._secret_url)
                if tries == len(WAITS_S) or _is_final(error):
                    raise _refused(f"{what} can't be published", self.url, told) from None
                wait = WAITS_S[tries]
                print(f"{what}: {told}; try {tries + 2} of {len(WAITS_S) + 1} in {wait:g} s", flush=True)
                time.sleep(wait)
        raise AssertionError("unreachable")


def _is_final(error: Exception) -> bool:
    return isinstance(error, _FINAL) or not _FINAL_NAMES.isdisjoint(kind.__name__ for kind in type(error).__mro__)


def _refused(what: str, where: str, told: str) -> StoreError:
    return StoreError(
        what,
        where=where,
        why=told,
        remedy="check the URL, the credentials in the environment and the network, then run the same command again",
    )
