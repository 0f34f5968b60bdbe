"""`doit fsck`: looks at every byte of the store, of what is known of steps, and of the artifacts.

What is wrong in the store or the build folder is dropped, so that the next build makes it again. Artifacts are
compared and reported, and the next build puts them back. What is not ours is reported and left alone. All of this is
safe while builds run: nothing is dropped that wasn't read again and found bad.
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
from pipeline.findings import ALTERED, DROPPED, FOREIGN, LEFT, Finding, unread
from pipeline.model import Manifest
from pipeline.storage import durable, sealed_json
from pipeline.storage.durable import UNRELATED, disk_errors, is_folder, leads_to_folder, remove
from pipeline.storage.manifests import read_manifest
from pipeline.upkeep import roots
from pipeline.workspace import Workspace

_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r".+@[0-9a-f]{40}\.json")
_OURS = {"objects", "manifests", "roots", "hub", "locks", "tmp", "costs.json"}


class Check:
    """One run over a workspace. With `dry_run` nothing is changed. `progress` gets bytes done and bytes in all."""

    def __init__(self, workspace: Workspace, *, dry_run: bool, progress: Callable[[int, int], None]) -> None:
        self._workspace = workspace
        self._store = workspace.store
        self._dry_run = dry_run
        self._progress = progress
        self._bad: set[str] = set()
        self._unlisted: list[Finding] = []
        self.payloads = 0
        self.payload_bytes = 0

    def store(self) -> Iterator[Finding]:
        """Everything in the store: payloads, then manifests, what else is there, and what the dead left."""
        if not self._dry_run:
            for path in (*self._store.collect(), *self._workspace.scratch.collect()):
                yield Finding(path, "left by a process that died", "removed", is_wrong=False)
        yield from self._payloads()
        yield from self._manifests()
        for path in self._listed(self._store.root / "roots"):
            if not roots.is_entry(path):
                yield Finding(path, FOREIGN, LEFT)
            else:
                yield from self._sealed(path, "folder", "dropped: that checkout's next build enters it again")
        for path in self._listed(self._store.root / "hub"):
            if not _COMMIT.fullmatch(path.name):
                yield Finding(path, FOREIGN, LEFT)
            else:
                yield from self._sealed(path, "files", "dropped: what this commit held is known no more")
        for path in self._listed(self._store.root):
            if path.name not in _OURS:
                yield Finding(path, FOREIGN, LEFT)
        yield from self._drain()

    def checkout(self, known: Container[Path]) -> Iterator[Finding]:
        """What is known of steps, and of files, in this checkout's build folder; `known` are manifests of steps."""
        steps = self._workspace.build / "steps"
        for path in self._below(steps):
            if path.suffix != ".json":
                yield Finding(path, FOREIGN, LEFT, is_wrong=False)
                continue
            manifest = read_manifest(path)
            if manifest is None or manifest.stage != path.relative_to(steps).parts[0]:
                yield from self._altered(path, "dropped: looked up again")
            elif path not in known:
                yield Finding(path, "no config has this step", "left: 'doit gc' removes it", is_wrong=False)
            elif _size(there := self._store.manifest_path(manifest.key)) == _MISSING and not self._lost(manifest):
                if not self._dry_run:
                    with disk_errors(there):
                        self._store.put_back(manifest)
                yield Finding(there, "it is missing, though it is current in this checkout", "put back")
        for path, member in self._workspace.caches().items():
            yield from self._sealed(path, member)
        yield from self._drain()

    def _payloads(self) -> Iterator[Finding]:
        paths: list[Path] = []
        for folder, path in self._two_deep(self._store.root / "objects"):
            if folder is None or not _SHA256.fullmatch(path.name) or path.name[:2] != folder.name:
                yield Finding(path, FOREIGN, LEFT)
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
                return f"it can't be read: {error.strerror}"  # the disk lost it: it is made again elsewhere
            return error

    def _manifests(self) -> Iterator[Finding]:
        for folder, path in self._two_deep(self._store.root / "manifests"):
            key = path.stem
            if folder is None or path.suffix != ".json" or not _SHA256.fullmatch(key) or key[:2] != folder.name:
                yield Finding(path, FOREIGN, LEFT)
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
            or _size(self._store.object_path(entry.sha256)) not in (entry.bytes, _UNKNOWN)  # not lost if not seen
        ]

    def _sealed(self, path: Path, member: str, done: str = "dropped: nothing is lost but time") -> Iterator[Finding]:
        try:
            sealed_json.load_member(path.read_bytes(), member)
        except FileNotFoundError:
            return
        except (OSError, ValueError):
            yield from self._altered(path, done)

    def _altered(self, path: Path, done: str = DROPPED) -> Iterator[Finding]:
        """Something that is not what was written, unless it only can't be read, or is gone by now."""
        try:
            if stat.S_ISREG(path.lstat().st_mode):
                path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            yield unread(path, error)
            return
        yield from self._dropped(path, ALTERED, done)

    def _dropped(self, path: Path, problem: str, done: str = DROPPED) -> Iterator[Finding]:
        if self._dry_run:
            yield Finding(path, problem, "to be dropped")
        elif remove(path, self._store.tmp if path.is_relative_to(self._store.root) else self._workspace.scratch.parent):
            yield Finding(path, problem, done)
        else:
            yield Finding(path, problem, "can't be removed")

    def _two_deep(self, root: Path) -> Iterator[tuple[Path | None, Path]]:
        """What is in the folders of a folder, each with its folder; and what is beside those folders, with None."""
        for folder in self._listed(root):
            is_one = self._is_one(folder, is_folder)
            if is_one is False:
                yield None, folder
            elif is_one:
                for path in self._listed(folder):
                    yield folder, path

    def _below(self, folder: Path) -> Iterator[Path]:
        """What is in a folder and in those below, but for the folders."""
        for path in self._listed(folder):
            is_one = self._is_one(path, leads_to_folder)
            if is_one:
                yield from self._below(path)
            elif is_one is False:
                yield path

    def _listed(self, folder: Path) -> list[Path]:
        """What is in a folder; nothing, and a finding, if it can't be read."""
        try:
            return durable.listed(folder)
        except OSError as error:
            self._unlisted.append(unread(folder, error))
            return []

    def _is_one(self, path: Path, is_folder: Callable[[Path], bool]) -> bool | None:
        """Whether it is a folder; None, and a finding, if that can't be told."""
        try:
            return is_folder(path)
        except OSError as error:
            self._unlisted.append(unread(path, error))
            return None

    def _drain(self) -> Iterator[Finding]:
        yield from self._unlisted
        self._unlisted.clear()


_MISSING, _UNKNOWN = -1, -2


def _size(path: Path) -> int:
    """Bytes of a file, or that it is missing, or that it can't be told."""
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return _MISSING
    except OSError:
        return _UNKNOWN
