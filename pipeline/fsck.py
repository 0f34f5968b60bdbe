"""`doit fsck`: looks at every byte of the store, of what is known of steps, and of the artifacts.

What is wrong in the store or the build folder is dropped, so that the next build makes it again. Artifacts are
compared and reported, and the next build puts them back. What is not ours is reported and left alone. All of this is
safe while builds run: nothing is dropped that wasn't read again and found bad.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Container, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pipeline import roots, sealed_json
from pipeline.durable import UNRELATED, disk_errors, remove
from pipeline.errors import StoreError
from pipeline.findings import ALTERED, DROPPED, FOREIGN, LEFT, Finding
from pipeline.manifests import read_manifest
from pipeline.model import Manifest
from pipeline.workspace import Workspace

_SHA256 = re.compile(r"[0-9a-f]{64}")
_ROOT = re.compile(r"[0-9a-f]{32}\.json")
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
        self.payloads = 0
        self.payload_bytes = 0

    def store(self) -> Iterator[Finding]:
        """Everything in the store: payloads, then manifests, what else is there, and what the dead left."""
        if not self._dry_run:
            for path in (*self._store.collect(), *self._workspace.scratch.collect()):
                yield Finding(path, "left by a process that died", "removed", is_wrong=False)
        yield from self._payloads()
        yield from self._manifests()
        for path in _listed(self._store.root / "roots"):
            if not _ROOT.fullmatch(path.name):
                yield Finding(path, FOREIGN, LEFT)
            elif roots.read(path) is None:
                yield from self._dropped(path, ALTERED)
        for path in _listed(self._store.root / "hub"):
            if not _COMMIT.fullmatch(path.name):
                yield Finding(path, FOREIGN, LEFT)
            else:
                yield from self._sealed(path, "files", "dropped: what this commit held is known no more")
        for path in _listed(self._store.root):
            if path.name not in _OURS:
                yield Finding(path, FOREIGN, LEFT)

    def checkout(self, known: Container[Path]) -> Iterator[Finding]:
        """What is known of steps, and of files, in this checkout's build folder; `known` are manifests of steps."""
        steps = self._workspace.build / "steps"
        for path in sorted(path for path in steps.rglob("*") if not path.is_dir()):
            if path.suffix != ".json":
                yield Finding(path, FOREIGN, LEFT, is_wrong=False)
                continue
            manifest = read_manifest(path)
            if manifest is None or manifest.stage != path.relative_to(steps).parts[0]:
                if path.exists():
                    yield from self._dropped(path, ALTERED, "dropped: looked up again")
            elif path not in known:
                yield Finding(path, "no config has this step", "left: 'doit gc' removes it", is_wrong=False)
            elif not (there := self._store.manifest_path(manifest.key)).exists() and not self._lost(manifest):
                if not self._dry_run:
                    with disk_errors(there):
                        self._store.put_back(manifest)
                yield Finding(there, "it is missing, though it is current in this checkout", "put back")
        for path, member in self._workspace.caches().items():
            yield from self._sealed(path, member)

    def _payloads(self) -> Iterator[Finding]:
        paths: list[Path] = []
        for folder, path in _two_deep(self._store.root / "objects"):
            if folder is None or not _SHA256.fullmatch(path.name) or path.name[:2] != folder.name:
                yield Finding(path, FOREIGN, LEFT)
            else:
                paths.append(path)
        sizes = [_size(path) for path in paths]
        done, whole = 0, sum(sizes)
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as readers:
            for path, size, fault in zip(paths, sizes, readers.map(self._fault, paths), strict=True):
                done += size
                self._progress(done, whole)
                if fault:
                    self._bad.add(path.name)
                    yield from self._dropped(path, fault)
        self.payloads, self.payload_bytes = len(paths), whole

    def _fault(self, path: Path) -> str:
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
            return f"it can't be read: {error.strerror}"

    def _manifests(self) -> Iterator[Finding]:
        for folder, path in _two_deep(self._store.root / "manifests"):
            key = path.stem
            if folder is None or path.suffix != ".json" or not _SHA256.fullmatch(key) or key[:2] != folder.name:
                yield Finding(path, FOREIGN, LEFT)
                continue
            manifest = read_manifest(path)
            if manifest is None or manifest.key != key:
                if path.exists():
                    yield from self._dropped(path, ALTERED)
            elif lost := self._lost(manifest):
                yield from self._dropped(path, f"{manifest.stage}: lacks {', '.join(lost)}")

    def _lost(self, manifest: Manifest) -> list[str]:
        """Names of the files whose payloads are damaged or missing."""
        return [
            name
            for name, entry in manifest.files.items()
            if entry.sha256 in self._bad or _size(self._store.object_path(entry.sha256)) != entry.bytes
        ]

    def _sealed(self, path: Path, member: str, done: str = "dropped: nothing is lost but time") -> Iterator[Finding]:
        try:
            sealed_json.load_member(path.read_bytes(), member)
        except FileNotFoundError:
            return
        except (OSError, ValueError):
            yield from self._dropped(path, ALTERED, done)

    def _dropped(self, path: Path, problem: str, done: str = DROPPED) -> Iterator[Finding]:
        if self._dry_run:
            yield Finding(path, problem, "to be dropped")
        elif remove(path):
            yield Finding(path, problem, done)
        else:
            yield Finding(path, problem, "can't be removed")


def _two_deep(root: Path) -> Iterator[tuple[Path | None, Path]]:
    """What is in the folders of a folder, each with its folder; and what is beside those folders, with None."""
    for folder in _listed(root):
        if not folder.is_dir() or folder.is_symlink():
            yield None, folder
            continue
        for path in _listed(folder):
            yield folder, path


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return -1
