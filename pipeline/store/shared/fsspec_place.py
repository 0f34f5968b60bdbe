"""A place that fsspec opens: `s3://bucket/folder`, `gs://`, `abfs://`, `sftp://`, `memory://` and others.

The library behind each finds credentials and addresses in its usual environment.
"""

from __future__ import annotations

import posixpath
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fsspec.asyn import get_loop
from fsspec.callbacks import Callback

from pipeline.errors import ConfigError
from pipeline.store.shared.place import MismatchError, Moved
from pipeline.store.urls import import_for, open_url, protocol_of, redacted

_PART_BYTES = 8 << 20
_S3 = ("s3", "s3a")
_GOOGLE = ("gs", "gcs")
_RENAMING = ("sftp", "ssh", "smb", "ftp", "hdfs", "arrow_hdfs", "webhdfs", "file", "local")
"""Kinds of file systems that show half-written files, and whose rename replaces a file in one step."""


def load(url: str, where: str) -> None:
    """Import what a URL needs, and keep its threads from holding up the end of the process. Raises ConfigError."""
    import_for(url, where)
    loop = get_loop()
    loop.set_default_executor(_Abandonable(1))
    # What fails in a task that nobody awaits, such as half of a request whose connection broke, fails in the call as
    # well. asyncio would print a traceback of it too, with the URL and whatever is secret in it.
    loop.set_exception_handler(lambda *_: None)


class _Abandonable(ThreadPoolExecutor):
    """Runs each call in a thread that the interpreter does not wait for at its end.

    The clients look up host names in threads of their event loop, which takes a minute if no name server answers.
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
        # The default holds whole files of 100 MB, and ten parts of 50 MB at once, in memory.
        self._sending: Mapping[str, Any] = (
            {"chunksize": _PART_BYTES, "max_concurrency": 2}
            if protocol in _S3
            else {"chunksize": _PART_BYTES}
            if protocol in _GOOGLE
            else {}
        )

    @classmethod
    def of(cls, url: str, where: str) -> FsspecPlace:
        """The place that a URL names. Raises ConfigError, and whatever the library behind it raises."""
        options: dict[str, Any] = {}
        if protocol_of(url) in _S3:
            # The client retries failed calls by itself; few tries let a refusal arrive before our patience ends.
            options["config_kwargs"] = {"retries": {"mode": "standard", "total_max_attempts": 2}}
            options["max_concurrency"] = 1  # for each file; several files are moved at once
        system, folder = open_url(url, where, **options)
        if options and not folder:
            raise ConfigError(f"no bucket is named: {redacted(url)}", where=where, remedy="write s3://bucket/folder")
        return cls(system, folder, url)

    def read(self, name: str, limit: int) -> bytes | None:
        """At most `limit` bytes of a file from its start; None if it is not there."""
        try:
            return bytes(self._system.cat_file(self._path(name), start=0, end=limit))
        except FileNotFoundError as error:
            _check_bucket(error)
            return None
        except PermissionError:
            raise
        except Exception:
            if self.size(name) == 0:  # no range of an empty file can be read
                return b""
            raise

    def size(self, name: str) -> int | None:
        """The bytes of a file; None if there is no file."""
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
        """Copy a file there, a large one in parts."""
        with self._written(name) as target:
            self._system.put_file(str(source), target, callback=_Counted(moved), **self._sending)

    def create(self, name: str, data: bytes) -> bool:
        """Write a small file unless there is one; False if there is, as far as the other side can tell."""
        if self._renames:
            if self.size(name) is not None:
                return False
            self.replace(name, data)
            return True
        try:
            self._system.pipe_file(self._path(name), data, mode="create")
        except Exception:  # each library has its own error for a file that exists, or none
            if self.size(name) is not None:
                return False
            self.replace(name, data)
        return True

    def replace(self, name: str, data: bytes) -> None:
        """Write a small file, whether or not it is there."""
        with self._written(name) as target:
            self._system.pipe_file(target, data)

    def remove(self, name: str) -> None:
        """Delete a file."""
        self._system.rm_file(self._path(name))

    def collect(self) -> None:
        """Does nothing: leftovers of uploads are invisible. docs/shared-store.md says how they go away."""

    @contextmanager
    def _written(self, name: str) -> Iterator[str]:
        """The path to write a file to: a temporary one, renamed at the end, where half-written files are visible."""
        path = self._path(name)
        if not self._renames:
            yield path
            return
        temporary = f"{self._folder}/tmp/{uuid.uuid4().hex}"
        for folder in {posixpath.dirname(path), posixpath.dirname(temporary)}:
            self._system.makedirs(folder, exist_ok=True)
        yield temporary
        self._system.mv(temporary, path)

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}" if self._folder else name


class _Counted(Callback):  # type: ignore[misc]  # fsspec is untyped
    """Reports how many bytes moved; if a size is given, refuses a file of another size."""

    def __init__(self, moved: Moved, size: int | None = None) -> None:
        super().__init__()
        self._moved, self._expected, self._counted = moved, size, 0

    def set_size(self, size: int | None) -> None:
        """Called with the size that the other side announces."""
        if self._expected is not None and size is not None and int(size) != self._expected:
            raise MismatchError(f"it has {size} bytes, not {self._expected}")

    def relative_update(self, inc: int = 1) -> None:
        """Called with the bytes that moved."""
        self._counted += inc
        if self._expected is not None and self._counted > self._expected:
            raise MismatchError(f"it has more than {self._expected} bytes")
        self._moved(inc)


def _check_bucket(error: FileNotFoundError) -> None:
    """Raise NoBucketError if the missing thing is the bucket: nothing can be read or written without it."""
    cause: BaseException | None = error
    while cause is not None:
        response = getattr(cause, "response", None)
        if isinstance(response, Mapping) and response.get("Error", {}).get("Code") == "NoSuchBucket":
            raise NoBucketError(str(error)) from None
        cause = cause.__cause__ or cause.__context__


class NoBucketError(Exception):
    """The bucket that should hold all files does not exist."""
