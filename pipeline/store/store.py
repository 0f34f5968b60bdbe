"""Content-addressed store of step outputs: objects by digest, manifests by key, published atomically, manifest last.

objects/<2 hex>/<sha256>       payloads, read-only, shared by every manifest that names them
manifests/<2 hex>/<key>.json   what the step with that key produced; its modification time is when it was last of use
roots/<name>.json              the checkouts that use this store
locks/                         held while a step is made, while a build runs, while space is freed
tmp/                           what is half-written
costs.json                     what steps took

What is damaged is dropped where it is found, with a line that says so; whoever needs it makes it again. What leaves
the store is always hashed. :mod:`pipeline.upkeep.fsck` hashes all there is, :mod:`pipeline.upkeep.collection` frees
space.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pipeline.errors import StoreError
from pipeline.model import FileEntry, Json, Manifest
from pipeline.storage import locks
from pipeline.storage.digests import copy_hashed
from pipeline.storage.durable import UNRELATED, disk_errors, listed, move, remove, sync_file, sync_folder
from pipeline.storage.manifests import read_manifest, write_manifest
from pipeline.storage.payloads import MISSING, Payloads
from pipeline.storage.scratch import Scratch

_WRITERS = 8
_SHOWN = 5  # damaged files of one output that are told one by one
_DAY_S = 86400
_UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT)


class DamagedError(StoreError):
    """A payload is not what it was. It was dropped; the step that made it can make it again."""


class Store:
    """A store under `root`, created on first write. Every method that touches the disk raises StoreError.

    `tell` is called with a line of text for whatever a user should know: damage, and long waits.
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
        """What the step with this key produced, whether or not that is still here; a damaged manifest is dropped."""
        path = self.manifest_path(key)
        manifest = read_manifest(path)
        if manifest is not None and manifest.key == key:
            return manifest
        if path.exists():
            self._drop(path, "a manifest", "it is not what was written")
        return None

    def get(self, key: str) -> Manifest | None:
        """The manifest of a key if all that it names is here, else None."""
        manifest = self.known(key)
        return manifest if manifest is not None and self.intact(manifest) else None

    def intact(self, manifest: Manifest) -> bool:
        """Whether every payload is what it was, as far as its size and seal tell; a bad one is dropped."""
        return not self._bad(manifest)

    def used(self, manifest: Manifest) -> None:
        """Note that an intact output is of use, once a day, and put its manifest back should it be lost."""
        path = self.manifest_path(manifest.key)
        with contextlib.suppress(OSError):  # of a read-only store nothing is freed
            try:
                if time.time() - os.stat(path).st_mtime > _DAY_S:
                    os.utime(path)
            except FileNotFoundError:
                self.put_back(manifest)
                self.tell(f"missing in the store, and put back: what is known of {manifest.stage} ({path})")

    def put_back(self, manifest: Manifest) -> None:
        """Write the manifest of an intact output, which was lost; raises OSError."""
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
        """Take over the files of `folder`, add those in `reused`, write the manifest last."""
        manifest = Manifest(stage, key, self.adopt(folder, reused), facts)
        self.record(manifest)
        return manifest

    def adopt(self, folder: Path, reused: Mapping[str, FileEntry]) -> dict[str, FileEntry]:
        """Take over the files of `folder`; they and those in `reused`, by name. They belong to no key yet."""
        with disk_errors(self.root):
            written = [path for path in folder.rglob("*") if path.is_file()]
            names = [path.relative_to(folder).as_posix() for path in written]
            with ThreadPoolExecutor(_WRITERS) as writers:  # hashing and syncing wait for the disk, not for Python
                entries = [*writers.map(partial(self.payloads.adopt, replaced=self._replaced), written)]
                parents = {self.object_path(entry.sha256).parent for entry in entries}
                list(writers.map(sync_folder, parents))
        return dict(sorted({**reused, **dict(zip(names, entries, strict=True))}.items()))

    def receive(self, manifest: Manifest, received: Mapping[Path, FileEntry]) -> None:
        """Take over files that came from elsewhere and were hashed just now, then the manifest that they complete."""
        with disk_errors(self.root):
            for path, entry in received.items():
                self.payloads.adopt(path, entry, replaced=self._replaced)
            for parent in {self.object_path(entry.sha256).parent for entry in received.values()}:
                sync_folder(parent)
        self.record(manifest)

    def record(self, manifest: Manifest) -> None:
        """Write a manifest whose payloads are here."""
        with disk_errors(self.root), self._scratch.folder() as folder:
            write_manifest(self.manifest_path(manifest.key), manifest, folder=folder)

    def place(self, manifest: Manifest, folder: Path) -> None:
        """Make the manifest's files appear under `folder`, as hard links where the file system can, else as copies.

        Each is hashed once in a build: what a step makes of a corrupt file would be kept as if made of a good one.
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
        """Copy a payload to `destination`, atomically by way of `folder`, and check its digest on the way.

        Raises DamagedError for a bad one, which is dropped.
        """
        source, temporary = self.object_path(entry.sha256), folder / destination.name
        with disk_errors(destination):
            if fault := self._fault(entry):
                self._drop(source, destination.name, fault)
                raise _damaged([destination.name], source)
            destination.parent.mkdir(parents=True, exist_ok=True)
            try:
                if copy_hashed(source, temporary) != entry.sha256:
                    self._drop(source, destination.name, "its SHA-256 is not the one that it was stored under")
                    raise _damaged([destination.name], source)
                sync_file(temporary)
                move(temporary, destination)
            finally:
                temporary.unlink(missing_ok=True)

    def collect(self) -> list[Path]:
        """Remove what processes left that died: scratch folders, locks. What was removed."""
        found = self._scratch.collect()
        with contextlib.suppress(OSError):
            found += [path for path in sorted((self.root / "locks").glob("*.lock")) if locks.collect(path)]
        return found

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """While inside, no space is freed in the store; waits while some is. Where nothing can be written, none is."""
        with contextlib.ExitStack() as stack:
            try:
                with self._gate():  # whoever collects may have our lock for a moment, before we do
                    lock = self._lock(f"{_BUILD}{uuid.uuid4().hex}")
                    stack.enter_context(locks.held(lock, "a lock of its own", tell=self.tell))
            except OSError as error:
                if error.errno not in _UNWRITABLE:
                    raise
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While inside no build uses the store; waits for those that do."""
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
        """The names of an output's payloads that are not what they were; they are dropped, in a few lines of text."""
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
        """Whether there were any when one was first missed: in a store that is new or was emptied all are."""
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
        """Remove what is damaged, and say so once."""
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
"""How the names of the locks begin that builds hold while they run."""


def _damaged(names: list[str], where: Path) -> DamagedError:
    return DamagedError(
        f"a stored file is corrupt: {', '.join(names)}",
        where=str(where),
        why="it is not what was stored",
        remedy="it was removed from the store; run the same command again to make it again",
    )
