"""Publishing to whatever fsspec can write to: `s3://bucket/folder`, `gs://`, `sftp://`, `memory://` and others.

Credentials are found as the library behind each finds them, by its usual environment.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pipeline.errors import ConfigError, StoreError
from pipeline.storage.urls import open_url, redacted, told

WAITS_S = (0.5, 1.0, 2.0, 4.0)
"""Pauses between tries, in seconds; one try more than there are pauses."""
_FINAL = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    NotImplementedError,
    TypeError,
    ValueError,
)
"""What stays as it is, however often it is tried; of others, the libraries behind fsspec have kinds of their own."""
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class FsspecDestination:
    """A folder of a file system of fsspec."""

    system: Any
    folder: str
    url: str

    @classmethod
    def of(cls, url: str) -> FsspecDestination:
        """Where a URL leads; raises ConfigError if its kind is unknown, or its package is not installed."""
        shown = redacted(url)
        try:
            system, folder = open_url(url, shown)
        except ConfigError:
            raise
        except Exception as error:  # what the libraries behind fsspec raise has nothing in common
            raise _refused("the destination can't be opened", shown, error) from None
        return cls(system, folder, shown)

    def read(self, name: str) -> bytes | None:
        """A small file that is there; None if it is not."""

        def look() -> bytes | None:
            try:
                return bytes(self.system.cat_file(self._path(name)))
            except FileNotFoundError:
                return None

        return self._trying(look, name)

    def send(self, archive: Path, index_name: str, index: bytes) -> str | None:
        """The archive, whose size is compared, then the index."""
        path = self._path(archive.name)
        # No folder is made first: where folders are but names, that may try to make a bucket.
        self._trying(lambda: self.system.put_file(str(archive), path), archive.name)
        self.system.invalidate_cache()
        size = self._trying(lambda: self.system.info(path)["size"], archive.name)
        if size != archive.stat().st_size:
            raise StoreError(
                f"{archive.name} arrived with {size} of {archive.stat().st_size} bytes",
                where=self.url,
                remedy="run the same command again: without an index nobody takes it for a release",
            )
        self._trying(lambda: self.system.pipe_file(self._path(index_name), index), index_name)
        return ""

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name}" if self.folder else name

    def _trying(self, call: Callable[[], _Answer], what: str) -> _Answer:
        """What `call` returns, tried again after failures that may pass."""
        for tries in range(len(WAITS_S) + 1):
            try:
                return call()
            except Exception as error:  # as above
                if tries == len(WAITS_S) or isinstance(error, _FINAL):
                    raise _refused(f"{what} can't be published", self.url, error) from None
                wait = WAITS_S[tries]
                print(f"{what}: {told(error)}; try {tries + 2} of {len(WAITS_S) + 1} in {wait:g} s", flush=True)
                time.sleep(wait)
        raise AssertionError("unreachable")


def _refused(what: str, where: str, error: Exception) -> StoreError:
    return StoreError(
        what,
        where=where,
        why=told(error),
        remedy="check the URL, the credentials in the environment and the network, then run the same command again",
    )
