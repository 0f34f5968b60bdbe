"""Content-addressed store of step outputs: objects by digest, manifests by key, published atomically, manifest last.

objects/<2 hex>/<sha256>       payloads, read-only, shared by every manifest that names them
manifests/<2 hex>/<key>.json   what the step with that key produced; its modification time is when it was last in use
roots/<name>.json              the checkouts that use this store
locks/                         held while a step is made, while a build runs, while space is freed
tmp/                           half-written files
costs.json                     what steps took

Code that finds a damaged file drops it and tells so, and the step that made it makes it again. The store hashes each
file that leaves it. :mod:`pipeline.upkeep.fsck` hashes everything, :mod:`pipeline.upkeep.collection` frees space.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pipeline.errors import StoreError
from pipeline.model import FileEntry, Json, Manifest
from pipeline.store import locks
from pipeline.store.digests import copy_hashed
from pipeline.store.durable import UNRELATED, disk_errors, listed, move, remove, sync_file, sync_folder
from pipeline.store.files_read import note_used
from pipeline.store.manifests import read_manifest, write_manifest
from pipeline.store.payloads import MISSING, Payloads
from pipeline.store.scratch import Scratch

_WRITERS = 8
_SHOWN = 5  # how many damaged files of one output are told one by one
_DAY_S = 86400
_UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT)


class DamagedError(StoreError):
    """A payload was damaged. It was dropped; the step that made it can make it again."""


class Store:
    """A store under `root`, created on first write. Every method that touches the disk raises StoreError.

    `tell` gets a line of text for the user on damage and on long waits.
    """

    def __init__(self, root: Path, tell: Callable[[str], None] = print) -> None:
        self.root = root
        self.tell = tell
        self.payloads = Payloads(root / "objects")
        self.tmp = root / "tmp"
        self._scratch = Scratch(self.tmp)
        self._told: set[str] = set()
        self._dropped: set[Path] = set()
        self._had_payloads: bool | None = None

    def object_path(self, sha256: str) -> Path:
        """Where the payload with this digest is, or would be."""
        return self.payloads.path(sha256)

    def manifest_path(self, key: str) -> Path:
        """Where the manifest of this key is, or would be."""
        return Path(f"{self.root}/manifests/{key[:2]}/{key}.json")

    def known(self, key: str) -> Manifest | None:
        """The manifest of a key, None if there is none. Drops a damaged one; does not look at payloads."""
        path = self.manifest_path(key)
        manifest = read_manifest(path)
        if manifest is not None and manifest.key == key:
            return manifest
        if path.exists():
            self._drop(path, "a manifest", "it is not what was written")
        return None

    def get(self, key: str) -> Manifest | None:
        """The manifest of a key if all its payloads are here, else None."""
        manifest = self.known(key)
        return manifest if manifest is not None and self.intact(manifest) else None

    def intact(self, manifest: Manifest) -> bool:
        """Whether every payload is good by its size and seal; drops a bad one."""
        return not self._bad(manifest)

    def used(self, manifest: Manifest) -> None:
        """Note once a day that an intact output is in use, and write its manifest again if it was lost."""
        note_used(manifest)
        with contextlib.suppress(OSError):  # a read-only store needs no note, as nothing is removed from it
            if not self.still_used(manifest.key):
                self.put_back(manifest)
                path = self.manifest_path(manifest.key)
                self.tell(f"missing in the store, and put back: what is known of {manifest.stage} ({path})")

    def still_used(self, key: str) -> bool:
        """Note once a day that an output is in use; False if its manifest was lost. Raises OSError."""
        path = f"{self.root}/manifests/{key[:2]}/{key}.json"
        try:
            if time.time() - os.stat(path).st_mtime > _DAY_S:
                os.utime(path)
        except FileNotFoundError:
            return False
        return True

    def put_back(self, manifest: Manifest) -> None:
        """Write the lost manifest of an intact output. Raises OSError."""
        with self._scratch.folder() as folder:
            write_manifest(self.manifest_path(manifest.key), manifest, folder=folder)

    @contextmanager
    def claimed(self, key: str) -> Iterator[None]:
        """Hold the lock of a key, so that two builds don't do the same work.

        Raises:
            TakenError: another step or build holds it.
        """
        with contextlib.ExitStack() as stack:
            with disk_errors(self.root, "the store can't be written"):
                stack.enter_context(locks.try_held(self._lock(key)))
            yield

    def wait(self, key: str, what: str) -> None:
        """Wait until nobody holds the lock of a key."""
        with disk_errors(self.root, "the store can't be written"), locks.held(self._lock(key), what, tell=self.tell):
            pass

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """An empty folder on the store's file system, removed at the end."""
        with contextlib.ExitStack() as stack:
            with disk_errors(self.root, "the store can't be written"):
                folder = stack.enter_context(self._scratch.folder())
            yield folder

    def publish(
        self, stage: str, key: str, folder: Path, facts: Mapping[str, Json], reused: Mapping[str, FileEntry]
    ) -> Manifest:
        """Move the files of `folder` into the store, add those in `reused`, and write the manifest last."""
        manifest = Manifest(stage, key, self.adopt(folder, reused), facts)
        self.record(manifest)
        return manifest

    def adopt(self, folder: Path, reused: Mapping[str, FileEntry]) -> dict[str, FileEntry]:
        """Move the files of `folder` into the store, not yet under a key. Returns them and `reused`, by name."""
        from concurrent.futures import ThreadPoolExecutor

        with disk_errors(self.root):
            written = [path for path in folder.rglob("*") if path.is_file()]
            names = [path.relative_to(folder).as_posix() for path in written]
            with ThreadPoolExecutor(_WRITERS) as writers:  # threads help, as hashing and syncing wait for the disk
                entries = [*writers.map(partial(self.payloads.adopt, replaced=self._replaced), written)]
                parents = {self.object_path(entry.sha256).parent for entry in entries}
                list(writers.map(sync_folder, parents))
        return dict(sorted({**reused, **dict(zip(names, entries, strict=True))}.items()))

    def receive(self, manifest: Manifest, received: Mapping[Path, FileEntry]) -> None:
        """Move files that were fetched and hashed just now into the store, then write their manifest."""
        self.take(received)
        self.record(manifest)

    def take(self, received: Mapping[Path, FileEntry]) -> None:
        """Move files that were fetched and hashed just now into the store, not yet under a key."""
        with disk_errors(self.root):
            for path, entry in received.items():
                self.payloads.adopt(path, entry, replaced=self._replaced)
            for parent in {self.object_path(entry.sha256).parent for entry in received.values()}:
                sync_folder(parent)

    def record(self, manifest: Manifest) -> None:
        """Write the manifest of payloads that are in the store."""
        with disk_errors(self.root), self._scratch.folder() as folder:
            write_manifest(self.manifest_path(manifest.key), manifest, folder=folder)

    def place(self, manifest: Manifest, folder: Path) -> None:
        """Put the manifest's files into `folder`, as hard links where the file system can, else as copies.

        Hashes each file once in a build, as the output of a step that read a corrupt file would be kept as good.
        Raises DamagedError.
        """
        with disk_errors(folder):
            if bad := self._bad(manifest, hashed=True):
                raise _damaged(bad, folder)
            for parent in {(folder / name).parent for name in manifest.files}:
                parent.mkdir(parents=True, exist_ok=True)
            for name, entry in manifest.files.items():
                source, destination = self.object_path(entry.sha256), folder / name
                try:
                    os.link(source, destination)
                except OSError:
                    shutil.copyfile(source, destination)

    def export(self, entry: FileEntry, destination: Path, folder: Path) -> None:
        """Copy a payload to `destination` atomically by way of `folder`, and check its digest on the way.

        Drops a bad payload and raises DamagedError.
        """
        source, temporary = self.object_path(entry.sha256), folder / destination.name
        with disk_errors(destination):
            if fault := self._fault(entry):
                self._drop(source, destination.name, fault)
                raise _damaged([destination.name], source)
            destination.parent.mkdir(parents=True, exist_ok=True)
            try:
                with disk_errors(temporary):  # it may be on another disk, and a write that fails names no file
                    copied = copy_hashed(source, temporary)
                    sync_file(temporary)
                if copied != entry.sha256:
                    self._drop(source, destination.name, "its SHA-256 is not the one that it was stored under")
                    raise _damaged([destination.name], source)
                move(temporary, destination)
            finally:
                temporary.unlink(missing_ok=True)

    def collect(self) -> list[Path]:
        """Remove scratch folders and locks of processes that died. Returns what was removed."""
        found = self._scratch.collect()
        with contextlib.suppress(OSError):
            found += [path for path in sorted((self.root / "locks").glob("*.lock")) if locks.collect(path)]
        return found

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep others from freeing space in the store; waits while they do. Takes no lock in a read-only store."""
        with contextlib.ExitStack() as stack:
            try:
                with self._gate():  # `collect` of another process may hold our new lock for a moment
                    lock = self._lock(f"{_BUILD}{uuid.uuid4().hex}")
                    stack.enter_context(locks.held(lock, "a lock of its own", tell=self.tell))
            except OSError as error:
                if error.errno not in _UNWRITABLE:
                    raise
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep builds from using the store; waits for those that do."""
        with disk_errors(self.root, "the store can't be written"), self._gate():
            for lock in listed(self.root / "locks"):
                if not lock.match(f"{_BUILD}*.lock"):
                    continue
                with locks.held(lock, "a build that uses this store", tell=self.tell):
                    pass
            yield

    @contextmanager
    def _gate(self) -> Iterator[None]:
        with locks.held(self._lock("gate"), "space to be freed in the store", tell=self.tell):
            yield

    def _lock(self, name: str) -> Path:
        folder = self.root / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{name}.lock"

    def _bad(self, manifest: Manifest, *, hashed: bool = False) -> list[str]:
        """The names of an output's missing and damaged payloads. Drops them, and tells so in a few lines."""
        faults = {name: self._fault(entry, hashed=hashed) for name, entry in manifest.files.items()}
        bad = [name for name, fault in faults.items() if fault]
        absent = [name for name in bad if faults[name] == MISSING]
        missing = [name for name in absent if self.object_path(manifest.files[name].sha256) not in self._dropped]
        if missing and self._has_payloads():
            count = f"{len(missing)} files" if len(missing) > 1 else "a file"
            what = f"{count} of {manifest.stage} (e.g. {missing[0]})"
            text = f"missing in the store: {what}; made again when needed"
            self._tell_once(f"{manifest.key} missing", text)
        damaged = [name for name in bad if faults[name] != MISSING]
        for number, name in enumerate(damaged):
            self._drop(self.object_path(manifest.files[name].sha256), name, faults[name], tell=number < _SHOWN)
        if len(damaged) > _SHOWN:
            text = f"damaged in the store: {len(damaged) - _SHOWN} more files of {manifest.stage}"
            self._tell_once(f"{manifest.key} damaged", text)
        return bad

    def _fault(self, entry: FileEntry, *, hashed: bool = False) -> str:
        try:
            return self.payloads.fault(entry, hashed=hashed)
        except OSError as error:
            if error.errno in UNRELATED:
                raise
            return f"it can't be read: {error.strerror}"

    def _has_payloads(self) -> bool:
        """Whether the store had payloads when one was first missed: a new or emptied store has none to miss."""
        if self._had_payloads is None:
            try:
                with os.scandir(self.root / "objects") as found:
                    self._had_payloads = any(found)
            except OSError:
                self._had_payloads = False
        return self._had_payloads

    def _replaced(self, path: Path, why: str) -> None:
        self._drop(path, "what a step made again", why)

    def _drop(self, path: Path, name: str, why: str, *, tell: bool = True) -> None:
        """Remove a damaged file, and tell so once."""
        gone = remove(path, self.tmp)
        self._dropped.add(path)
        if tell and (self.root / "objects").is_dir():  # a store that was deleted is not damaged
            what = "it is made again when it is needed" if gone else "and it can't be removed"
            self._tell_once(str(path), f"damaged in the store: {name}: {why}; {what} ({path})")

    def _tell_once(self, about: str, text: str) -> None:
        if about not in self._told:
            self._told.add(about)
            self.tell(text)


_BUILD = "build-"
"""The beginning of the names of locks that builds hold while they run."""


def _damaged(names: list[str], where: Path) -> DamagedError:
    return DamagedError(
        f"a stored file is corrupt: {', '.join(names)}",
        where=str(where),
        why="it is not what was stored",
        remedy="it was removed from the store; run the same command again to make it again",
    )
