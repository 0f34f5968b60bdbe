"""Content-addressed store of step outputs: objects by digest, manifests by key, published atomically, manifest last.

objects/<2 hex>/<sha256>       payloads, read-only, shared by every manifest that names them
manifests/<2 hex>/<key>.json   what the step with that key produced
locks/<key>.lock               held while a step runs, so that two builds don't do the same work
tmp/                           output of running steps

A payload's modification time is its seal: a second that its digest names, set when its bytes were hashed. Whoever
writes to it breaks the seal, so a payload whose size and seal are right is not read again before a step uses it. What
leaves the store is always hashed, and :meth:`Store.corrupt` hashes all there is.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import threading
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from filelock import FileLock, Timeout

from pipeline.digests import copy_hashed, sha256_file
from pipeline.errors import StoreError
from pipeline.model import FileEntry, Json, Manifest

SCHEMA = 1
_WRITERS = 8


class Store:
    """A store under `root`, created on first write. Every method that touches the disk raises StoreError."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._collected = False

    def object_path(self, sha256: str) -> Path:
        """Where the payload with this digest is, or would be."""
        return Path(self._object(sha256))

    def manifest_path(self, key: str) -> Path:
        """Where the manifest of this key is, or would be."""
        return self.root / "manifests" / key[:2] / f"{key}.json"

    def get(self, key: str) -> Manifest | None:
        """The manifest of a key if every payload it names is here with the right size, else None."""
        manifest = read_manifest(self.manifest_path(key))
        if manifest is None or manifest.key != key or not self.intact(manifest):
            return None
        return manifest

    def intact(self, manifest: Manifest) -> bool:
        """Whether every payload is present with its recorded size; contents are checked when they are exported."""
        for entry in manifest.files.values():
            try:
                if os.stat(self._object(entry.sha256)).st_size != entry.bytes:
                    return False
            except OSError:
                return False
        return True

    @contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Hold the lock of a key; the operating system frees it if the holder dies."""
        folder = self.root / "locks"
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f"{key}.lock"):
            yield

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """An empty folder on the store's file system, removed at the end."""
        parent = self.root / "tmp"
        with disk_errors(parent):
            parent.mkdir(parents=True, exist_ok=True)
            if not self._collected:
                self._collected = True
                _collect_dead(parent)
            name = uuid.uuid4().hex
            folder = parent / name
            lock = FileLock(parent / f"{name}.lock")
            lock.acquire()
            folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            lock.release()
            Path(lock.lock_file).unlink(missing_ok=True)

    def publish(
        self, stage: str, key: str, folder: Path, facts: Mapping[str, Json], reused: Mapping[str, FileEntry]
    ) -> Manifest:
        """Take over the files of `folder`, add those in `reused`, write the manifest last."""
        with disk_errors(self.root):
            written = [path for path in folder.rglob("*") if path.is_file()]
            with ThreadPoolExecutor(_WRITERS) as writers:  # hashing and syncing wait for the disk, not for Python
                entries = [*writers.map(self._adopt, written)]
            names = (path.relative_to(folder).as_posix() for path in written)
            files = {**reused, **dict(zip(names, entries, strict=True))}
            manifest = Manifest(stage, key, dict(sorted(files.items())), facts)
            write_manifest(self.manifest_path(key), manifest)
        return manifest

    def place(self, manifest: Manifest, folder: Path) -> None:
        """Make the manifest's files appear under `folder`, as hard links where the file system can, else as copies.

        Those whose seal is broken are hashed: what is measured on a corrupt file would be kept as the figures of a good
        one.
        """
        with disk_errors(folder):
            for parent in {(folder / name).parent for name in manifest.files}:
                parent.mkdir(parents=True, exist_ok=True)
            for name, entry in manifest.files.items():
                destination = folder / name
                source = self.object_path(entry.sha256)
                if not _sealed(source, entry) and not _seal(source, entry.sha256):
                    raise _corrupt(source, destination.name)
                try:
                    os.link(source, destination)
                except OSError:
                    shutil.copyfile(source, destination)

    def export(self, entry: FileEntry, destination: Path) -> None:
        """Copy a payload to `destination` atomically, checking its digest on the way; a corrupt one is dropped."""
        source = self.object_path(entry.sha256)
        with disk_errors(destination):
            destination.parent.mkdir(parents=True, exist_ok=True)
            temporary = destination.with_name(f".{destination.name}.{os.getpid()}.tmp")
            try:
                if copy_hashed(source, temporary) != entry.sha256:
                    raise _corrupt(source, destination.name)
                os.replace(temporary, destination)
            finally:
                temporary.unlink(missing_ok=True)

    def corrupt(self) -> Iterator[Path]:
        """Hash every payload, whatever its seal says; yields those that are not what they were, and drops them."""
        for path in sorted((self.root / "objects").glob("*/*")):
            with disk_errors(path):
                if not _seal(path, path.name):
                    _drop(path)
                    yield path

    def _object(self, sha256: str) -> str:
        return f"{self.root}/objects/{sha256[:2]}/{sha256}"

    def _adopt(self, path: Path) -> FileEntry:
        entry = FileEntry(sha256_file(path), path.stat().st_size)
        destination = self.object_path(entry.sha256)
        if not (destination.is_file() and _sealed(destination, entry)):
            destination.parent.mkdir(parents=True, exist_ok=True)
            _sync(path)
            os.utime(path, (_seal_s(entry.sha256),) * 2)
            path.chmod(0o444)
            if os.name == "nt":
                _drop(destination)  # what is read-only is not replaced there
            os.replace(path, destination)
        return entry


def _drop(payload: Path) -> None:
    """Remove a payload if it is there."""
    with contextlib.suppress(FileNotFoundError):
        payload.chmod(0o644)  # Windows does not remove what is read-only
        payload.unlink()


def _seal_s(sha256: str) -> int:
    """The modification time that seals a payload: even seconds, which every file system can keep, of 2001 to 2018."""
    return 1_000_000_000 + 2 * int(sha256[:7], 16)


def _sealed(path: Path, entry: FileEntry) -> bool:
    status = path.stat()
    return status.st_size == entry.bytes and status.st_mtime_ns == _seal_s(entry.sha256) * 1_000_000_000


def _seal(path: Path, sha256: str) -> bool:
    """Whether the payload has this digest; if so it is sealed, where that is allowed."""
    seal_ns = _seal_s(sha256) * 1_000_000_000
    while True:
        before = path.stat().st_mtime_ns
        if sha256_file(path) != sha256:
            return False
        after = path.stat().st_mtime_ns
        if after == seal_ns:  # another step, which needs it too, may have been faster
            return True
        if after == before:
            break
    with contextlib.suppress(OSError):
        os.utime(path, ns=(seal_ns, seal_ns))
    return True


def _corrupt(path: Path, name: str) -> StoreError:
    """The error for a stored file that is not what it was; the file is dropped, so that the next build makes it."""
    _drop(path)
    return StoreError(
        f"a stored file is corrupt: {name}",
        where=str(path),
        why="its SHA-256 is not the one it was stored under",
        remedy="it was removed from the store; run the same command again to rebuild it",
    )


def _collect_dead(parent: Path) -> None:
    """Remove scratch folders whose owner no longer holds their lock: it died before it could."""
    for lock_path in parent.glob("*.lock"):
        try:
            with FileLock(lock_path, timeout=0):
                shutil.rmtree(lock_path.with_suffix(""), ignore_errors=True)
                lock_path.unlink(missing_ok=True)
        except (Timeout, OSError):
            continue  # in use, or gone already


def read_manifest(path: Path) -> Manifest | None:
    """The manifest in a file, or None when there is none or it is not one of ours."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return _parsed(str(path), status.st_size, status.st_mtime_ns, status.st_ino)


@lru_cache(maxsize=1 << 14)  # each is asked for by every step that needs it, and by the report
def _parsed(path: str, *_: int) -> Manifest | None:
    try:
        with open(path, "rb") as stream:
            raw = json.loads(stream.read())
        files = {name: FileEntry(entry["sha256"], entry["bytes"]) for name, entry in raw["files"].items()}
        if raw["schema"] != SCHEMA:
            return None
        return Manifest(raw["stage"], raw["key"], files, raw["facts"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write a manifest atomically, as readable JSON whose bytes depend on nothing but the manifest."""
    files = {name: {"sha256": entry.sha256, "bytes": entry.bytes} for name, entry in sorted(manifest.files.items())}
    raw = {"schema": SCHEMA, "stage": manifest.stage, "key": manifest.key, "files": files, "facts": manifest.facts}
    write_atomically(path, json.dumps(raw, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n")


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace `path` by `data` so that a reader sees the old bytes or the new ones; after a crash, too, if durable."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(data)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # Windows can't sync a read-only handle; the rename still orders after close
        if error.errno != errno.EBADF:
            raise
    finally:
        os.close(descriptor)


@contextmanager
def disk_errors(where: Path, what: str = "the disk refused a write") -> Iterator[None]:
    """Turn an OSError inside into a StoreError that begins with `what`."""
    try:
        yield
    except OSError as error:
        remedy = {
            errno.ENOSPC: "free some space, then run the same command again; what was built is kept",
            errno.EDQUOT: "free some of your quota, then run the same command again; what was built is kept",
            errno.EROFS: "the file system is read-only: choose another folder with PIPELINE_STORE",
            errno.EACCES: "check the permissions of this folder, or choose another with PIPELINE_STORE",
        }.get(error.errno or 0, "mend the cause, then run the same command again; what was built is kept")
        raise StoreError(
            what,
            where=str(error.filename or where),
            why=error.strerror or str(error),
            remedy=remedy,
        ) from error
