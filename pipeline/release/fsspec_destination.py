"""Publishing to whatever fsspec can write to: `s3://bucket/folder`, `gs://`, `sftp://`, `memory://` and others.

Credentials are found as the library behind each finds them, by its usual environment.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pipeline.errors import ConfigError, StoreError
from pipeline.model import FileEntry
from pipeline.release.destinations import ALTERED
from pipeline.shared import fsspec_place
from pipeline.shared.fsspec_place import FsspecPlace, NoBucketError
from pipeline.shared.patience import GoneError, Patience
from pipeline.shared.place import MismatchError, Moved
from pipeline.shared.reach import Rarely, size
from pipeline.storage.digests import sha256_file
from pipeline.storage.payloads import MISSING
from pipeline.storage.urls import redacted, told

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
"""What stays as it is, however often it is tried. Those by name are of the client of S3, which may not be installed;
whatever else is a library's own kind may pass."""
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class FsspecDestination:
    """A folder of a file system of fsspec. One that does not answer is given up after some seconds."""

    place: FsspecPlace
    url: str
    """As it may be shown."""
    _secret_url: str = field(repr=False)
    _patience: Patience = field(repr=False)

    @classmethod
    def of(cls, url: str) -> FsspecDestination:
        """Where a URL leads; raises ConfigError if its kind is unknown, or its package is not installed."""
        shown, opened = redacted(url), list[FsspecPlace]()
        patience = Patience(lambda: opened[0].size("index.json"))
        fsspec_place.load(url, shown)
        try:
            opened.append(patience.ask(lambda: FsspecPlace.of(url, shown)))
        except ConfigError:
            raise
        except Exception as error:  # what the libraries behind fsspec raise has nothing in common
            raise _refused("the destination can't be opened", shown, _why(error, url)) from None
        return cls(opened[0], shown, url, patience)

    def read(self, name: str) -> bytes | None:
        """A small file that is there; None if it is not."""
        return self._trying(lambda: self._patience.ask(lambda: self.place.read(name, _INDEX_BYTES)), name)

    def fault(self, name: str, entry: FileEntry) -> str:
        """What is wrong with an archive there, which is fetched; "" if nothing is."""
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
        """The archive, whose size is compared, then the index if there is none."""
        name, whole = archive.name, archive.stat().st_size
        # No folder is made first: where folders are but names, that may try to make a bucket.
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
        """What comes of moving a file; how far it is, is said every now and then."""

        def moved() -> _Answer:
            rarely = Rarely(lambda text: print(text, flush=True))
            return self._patience.move(act, lambda done: rarely(lambda: f"{what}: {size(done)} of {size(whole)}"))

        return self._trying(moved, what)

    def _trying(self, call: Callable[[], _Answer], what: str) -> _Answer:
        """What `call` returns, tried again after failures that may pass."""
        for tries in range(len(WAITS_S) + 1):
            try:
                return call()
            except Exception as error:  # as above
                why = _why(error, self._secret_url)
                if tries == len(WAITS_S) or _is_final(error):
                    raise _refused(f"{what} can't be published", self.url, why) from None
                wait = WAITS_S[tries]
                print(f"{what}: {why}; try {tries + 2} of {len(WAITS_S) + 1} in {wait:g} s", flush=True)
                time.sleep(wait)
        raise AssertionError("unreachable")


def _is_final(error: Exception) -> bool:
    return isinstance(error, _FINAL) or not _FINAL_NAMES.isdisjoint(kind.__name__ for kind in type(error).__mro__)


def _why(error: Exception, url: str) -> str:
    return str(error) if isinstance(error, GoneError) else told(error, url)


def _refused(what: str, where: str, why: str) -> StoreError:
    return StoreError(
        what,
        where=where,
        why=why,
        remedy="check the URL, the credentials in the environment and the network, then run the same command again",
    )
