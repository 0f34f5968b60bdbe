"""`doit fsck`: reads every byte of the store and of the artifacts, and every record of a step.

fsck drops what is wrong in the store or the build folder, and the next build makes it again. It reports artifacts that
are wrong, and the next build puts them back. It reports files that are not ours and leaves them alone. It may run
beside builds: it drops a file only after reading it twice and finding it bad both times.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Container, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pipeline.errors import StoreError
from pipeline.model import Manifest
from pipeline.plan.workspace import Workspace
from pipeline.store import durable, sealed_json
from pipeline.store.durable import UNRELATED, disk_errors, is_folder, leads_to_folder, remove
from pipeline.store.finding import ALTERED, DROPPED, FOREIGN, LEFT, FsckFinding, unread
from pipeline.store.manifests import read_manifest
from pipeline.upkeep import roots

_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r".+@[0-9a-f]{40}\.json")
_OURS = {"objects", "manifests", "roots", "hub", "locks", "tmp", "costs.json"}


class StoreCheck:
    """One run over a workspace. With `dry_run` it changes nothing. `progress` gets bytes done and bytes in all."""

    def __init__(self, workspace: Workspace, *, dry_run: bool, progress: Callable[[int, int], None]) -> None:
        self._workspace = workspace
        self._store = workspace.store
        self._dry_run = dry_run
        self._progress = progress
        self._bad: set[str] = set()
        self._unlisted: list[FsckFinding] = []
        self.payloads = 0
        self.payload_bytes = 0

    def store(self) -> Iterator[FsckFinding]:
        """Check the store: what dead processes left, payloads, manifests, and all other files."""
        if not self._dry_run:
            for path in (*self._store.collect(), *self._workspace.scratch.collect()):
                yield FsckFinding(path, "left by a process that died", "removed", is_wrong=False)
        yield from self._payloads()
        yield from self._manifests()
        for path in self._listed(self._store.root / "roots"):
            if not roots.is_entry(path):
                yield FsckFinding(path, FOREIGN, LEFT)
            else:
                yield from self._sealed(path, "folder", "dropped: that checkout's next build enters it again")
        for path in self._listed(self._store.root / "hub"):
            if not _COMMIT.fullmatch(path.name):
                yield FsckFinding(path, FOREIGN, LEFT)
            else:
                yield from self._sealed(path, "files", "dropped: what this commit held is known no more")
        for path in self._listed(self._store.root):
            if path.name not in _OURS:
                yield FsckFinding(path, FOREIGN, LEFT)
        yield from self._drain()

    def checkout(self, known: Container[Path], unreadable: Container[str]) -> Iterator[FsckFinding]:
        """Check the records of steps and the caches in this checkout's build folder; `known` are manifests of steps.

        The steps of the `unreadable` models are not known, so records of theirs are left alone.
        """
        steps = self._workspace.build / "steps"
        for path in self._below(steps):
            if path.suffix != ".json":
                yield FsckFinding(path, FOREIGN, LEFT, is_wrong=False)
                continue
            manifest = read_manifest(path)
            if manifest is None or manifest.stage != path.relative_to(steps).parts[0]:
                yield from self._altered(path, "dropped: looked up again")
            elif path not in known and path.relative_to(steps).with_suffix("").parts[1] in unreadable:
                continue
            elif path not in known:
                yield FsckFinding(path, "no config has this step", "left: 'doit gc' removes it", is_wrong=False)
            elif _size(there := self._store.manifest_path(manifest.key)) == _MISSING and not self._lost(manifest):
                if not self._dry_run:
                    with disk_errors(there):
                        self._store.put_back(manifest)
                yield FsckFinding(there, "it is missing, though it is current in this checkout", "put back")
        for path, member in self._workspace.caches().items():
            yield from self._sealed(path, member)
        yield from self._drain()

    def _payloads(self) -> Iterator[FsckFinding]:
        paths: list[Path] = []
        for folder, path in self._two_deep(self._store.root / "objects"):
            if folder is None or not _SHA256.fullmatch(path.name) or path.name[:2] != folder.name:
                yield FsckFinding(path, FOREIGN, LEFT)
            else:
                paths.append(path)
        sizes = [max(_size(path), 0) for path in paths]
        done, whole = 0, sum(sizes)
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as readers:
            for path, size, fault in zip(paths, sizes, readers.map(self._fault, paths), strict=True):
                done += size
                self._progress(done, whole)
                if isinstance(fault, OSError):
                    yield unread(path, fault)
                elif fault:
                    self._bad.add(path.name)
                    yield from self._dropped(path, fault)
        self.payloads, self.payload_bytes = len(paths), whole

    def _fault(self, path: Path) -> str | OSError:
        try:
            return self._store.payloads.hashed_fault(path.name)
        except FileNotFoundError:
            return ""  # dropped by a build, or freed, since it was listed
        except OSError as error:
            if error.errno in UNRELATED:
                raise StoreError(
                    "the store can't be read",
                    where=str(path),
                    why=error.strerror or str(error),
                    remedy="end other programs, or raise the limit of open files, then run the same command again",
                ) from error
            if error.errno == errno.EIO:
                return f"it can't be read: {error.strerror}"  # the disk lost it: it is written anew in another place
            return error

    def _manifests(self) -> Iterator[FsckFinding]:
        for folder, path in self._two_deep(self._store.root / "manifests"):
            key = path.stem
            if folder is None or path.suffix != ".json" or not _SHA256.fullmatch(key) or key[:2] != folder.name:
                yield FsckFinding(path, FOREIGN, LEFT)
                continue
            manifest = read_manifest(path)
            if manifest is None or manifest.key != key:
                yield from self._altered(path)
            elif lost := self._lost(manifest):
                yield from self._dropped(path, f"{manifest.stage}: lacks {', '.join(lost)}")

    def _lost(self, manifest: Manifest) -> list[str]:
        """Names of the files whose payloads are damaged or missing."""
        return [
            name
            for name, entry in manifest.files.items()
            if entry.sha256 in self._bad
            or _size(self._store.object_path(entry.sha256))
            not in (entry.bytes, _UNKNOWN)  # what can't be looked at is not lost
        ]

    def _sealed(
        self, path: Path, member: str, done: str = "dropped: nothing is lost but time"
    ) -> Iterator[FsckFinding]:
        try:
            sealed_json.load_member(path.read_bytes(), member)
        except FileNotFoundError:
            return
        except (OSError, ValueError):
            yield from self._altered(path, done)

    def _altered(self, path: Path, done: str = DROPPED) -> Iterator[FsckFinding]:
        """Drop a file that is not what was written, unless it can't be read or is gone by now."""
        try:
            if stat.S_ISREG(path.lstat().st_mode):
                path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            yield unread(path, error)
            return
        yield from self._dropped(path, ALTERED, done)

    def _dropped(self, path: Path, problem: str, done: str = DROPPED) -> Iterator[FsckFinding]:
        if self._dry_run:
            yield FsckFinding(path, problem, "to be dropped")
        elif remove(path, self._store.tmp if path.is_relative_to(self._store.root) else self._workspace.scratch.parent):
            yield FsckFinding(path, problem, done)
        else:
            yield FsckFinding(path, problem, "can't be removed")

    def _two_deep(self, root: Path) -> Iterator[tuple[Path | None, Path]]:
        """Every path two levels below a folder, with its parent; files on the first level with None."""
        for folder in self._listed(root):
            is_one = self._is_one(folder, is_folder)
            if is_one is False:
                yield None, folder
            elif is_one:
                for path in self._listed(folder):
                    yield folder, path

    def _below(self, folder: Path) -> Iterator[Path]:
        """All files in a folder and in the folders below it."""
        for path in self._listed(folder):
            is_one = self._is_one(path, leads_to_folder)
            if is_one:
                yield from self._below(path)
            elif is_one is False:
                yield path

    def _listed(self, folder: Path) -> list[Path]:
        """What is in a folder; if it can't be read, nothing, and a finding is noted."""
        try:
            return durable.listed(folder)
        except OSError as error:
            self._unlisted.append(unread(folder, error))
            return []

    def _is_one(self, path: Path, is_folder: Callable[[Path], bool]) -> bool | None:
        """Whether a path is a folder; if the system can't tell, None, and a finding is noted."""
        try:
            return is_folder(path)
        except OSError as error:
            self._unlisted.append(unread(path, error))
            return None

    def _drain(self) -> Iterator[FsckFinding]:
        yield from self._unlisted
        self._unlisted.clear()


_MISSING, _UNKNOWN = -1, -2


def _size(path: Path) -> int:
    """The bytes of a file, `_MISSING`, or `_UNKNOWN` if the system can't tell."""
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return _MISSING
    except OSError:
        return _UNKNOWN
