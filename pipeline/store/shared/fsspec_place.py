"""A place that fsspec opens: `s3://bucket/folder`, `gs://`, `abfs://`, `sftp://`, `memory://` and others.

Credentials and addresses are found as the library behind each finds them, by its usual environment.
"""

from __future__ import annotations

import posixpath
import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fsspec.asyn import get_loop
from fsspec.callbacks import Callback

from pipeline.errors import ConfigError
from pipeline.shared.place import MismatchError, Moved
from pipeline.storage.urls import import_for, open_url, protocol_of, redacted

_PART_BYTES = 8 << 20
_S3 = ("s3", "s3a")
_GOOGLE = ("gs", "gcs")
_RENAMING = ("sftp", "ssh", "smb", "ftp", "hdfs", "arrow_hdfs", "webhdfs", "file", "local")
"""Kinds of file systems where a file that is being written is seen, and a rename replaces in one step."""


def load(url: str, where: str) -> None:
    """Import what a URL needs, and see to it that nothing it does keeps the process from ending. Raises ConfigError."""
    import_for(url, where)
    get_loop().set_default_executor(_Abandonable(1))


class _Abandonable(ThreadPoolExecutor):
    """Runs each call in a thread that the interpreter does not wait for at its end.

    The clients look up host names in threads of their event loop: where no name server answers, that takes a minute.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Start a call."""
        future: Future[Any] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, name="shared store, for its client", daemon=True).start()
        return future


class FsspecPlace:
    """A folder of a file system of fsspec."""

    def __init__(self, system: Any, folder: str, url: str) -> None:
        self._system, self._folder = system, folder
        protocol = protocol_of(url)
        self._renames = protocol in _RENAMING
        # By default whole files of 100 MB, and ten parts of 50 MB at once, are held in memory.
        self._sending: Mapping[str, Any] = (
            {"chunksize": _PART_BYTES, "max_concurrency": 2}
            if protocol in _S3
            else {"chunksize": _PART_BYTES}
            if protocol in _GOOGLE
            else {}
        )

    @classmethod
    def of(cls, url: str, where: str) -> FsspecPlace:
        """Where a URL leads. Raises ConfigError, and what the library behind it raises."""
        options: dict[str, Any] = {}
        if protocol_of(url) in _S3:
            # It tries failed calls again by itself; a place that refuses is to say so before our patience ends.
            options["config_kwargs"] = {"retries": {"mode": "standard", "total_max_attempts": 2}}
            options["max_concurrency"] = 1  # for each file; several files are moved at once
        system, folder = open_url(url, where, **options)
        if options and not folder:
            raise ConfigError(f"no bucket is named: {redacted(url)}", where=where, remedy="write s3://bucket/folder")
        return cls(system, folder, url)

    def read(self, name: str, limit: int) -> bytes | None:
        """At most so many bytes of a file from its start; None if it is not there."""
        try:
            return bytes(self._system.cat_file(self._path(name), start=0, end=limit))
        except FileNotFoundError as error:
            _check_bucket(error)
            return None
        except PermissionError:
            raise
        except Exception:
            if self.size(name) == 0:  # of which no range can be had
                return b""
            raise

    def size(self, name: str) -> int | None:
        """Bytes of a file; None if there is no file."""
        self._system.invalidate_cache()
        try:
            found = self._system.info(self._path(name))
        except FileNotFoundError as error:
            _check_bucket(error)
            return None
        size = found.get("size") if found.get("type") == "file" else None
        return None if size is None else int(size)

    def fetch(self, name: str, destination: Path, size: int, moved: Moved) -> bool:
        """Copy a file here; False if it is not there. Raises MismatchError as soon as it has another size."""
        try:
            self._system.get_file(self._path(name), str(destination), callback=_Counted(moved, size))
        except FileNotFoundError as error:
            _check_bucket(error)
            return False
        if (found := destination.stat().st_size) != size:
            raise MismatchError(f"it has {found} bytes, not {size}")
        return True

    def send(self, source: Path, name: str, moved: Moved) -> None:
        """Copy a file there; in parts if it is large."""
        path = self._path(name)
        with _Written(self, path) as target:
            self._system.put_file(str(source), target, callback=_Counted(moved), **self._sending)

    def create(self, name: str, data: bytes) -> bool:
        """Write a small file that is not there yet; False if it is, as far as the other side can tell."""
        if self._renames:
            if self.size(name) is not None:
                return False
            self.replace(name, data)
            return True
        try:
            self._system.pipe_file(self._path(name), data, mode="create")
        except Exception:  # each library says in its own way that there is one, or that it can't tell
            if self.size(name) is not None:
                return False
            self.replace(name, data)
        return True

    def replace(self, name: str, data: bytes) -> None:
        """Write a small file, whether or not it is there."""
        with _Written(self, self._path(name)) as target:
            self._system.pipe_file(target, data)

    def remove(self, name: str) -> None:
        """Delete a file."""
        self._system.rm_file(self._path(name))

    def collect(self) -> None:
        """Nothing: what is left of an upload is not seen; docs/shared-store.md says how it goes away."""

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}" if self._folder else name


class _Written:
    """The path to write to: of a file system whose files are seen while they are written, another one, renamed."""

    def __init__(self, place: FsspecPlace, path: str) -> None:
        self._system, self._renames, self._path = place._system, place._renames, path
        self._target = f"{place._folder}/tmp/{uuid.uuid4().hex}" if place._renames else path

    def __enter__(self) -> str:
        if self._renames:
            for folder in {posixpath.dirname(self._path), posixpath.dirname(self._target)}:
                self._system.makedirs(folder, exist_ok=True)
        return self._target

    def __exit__(self, kind: object, *_: object) -> None:
        if self._renames and kind is None:
            self._system.mv(self._target, self._path)


class _Counted(Callback):  # type: ignore[misc]  # fsspec is untyped
    """Tells how many bytes moved; with a size, that there are others."""

    def __init__(self, moved: Moved, size: int | None = None) -> None:
        super().__init__()
        self._moved, self._expected, self._counted = moved, size, 0

    def set_size(self, size: int | None) -> None:
        """Called with what the other side says."""
        if self._expected is not None and size is not None and int(size) != self._expected:
            raise MismatchError(f"it has {size} bytes, not {self._expected}")

    def relative_update(self, inc: int = 1) -> None:
        """Called with the bytes that moved."""
        self._counted += inc
        if self._expected is not None and self._counted > self._expected:
            raise MismatchError(f"it has more than {self._expected} bytes")
        self._moved(inc)


def _check_bucket(error: FileNotFoundError) -> None:
    """Raise the error if what is not there is the bucket: then nothing is, and nothing can be written."""
    cause: BaseException | None = error
    while cause is not None:
        response = getattr(cause, "response", None)
        if isinstance(response, Mapping) and response.get("Error", {}).get("Code") == "NoSuchBucket":
            raise NoBucketError(str(error)) from None
        cause = cause.__cause__ or cause.__context__


class NoBucketError(Exception):
    """What should hold all files is not there."""
