"""The store and the folders that a build writes: can they be written, what can their file system do, are they sound."""

from __future__ import annotations

import errno
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.doctor.finding import STORE, Finding, error, ok, warning
from pipeline.storage.manifests import read_manifest

_SAMPLE = 300
"""Manifests that are looked at; `doit fsck` looks at all, and hashes what they name."""

_SKEW_S = 5.0
_NAME = "한국어 🙂 space"
_WINDOWS_PATH = 260
_LONGEST_BELOW = 150  # characters of the longest path below the store or the build folder, roughly
"""How long paths get: `objects/ab/<64 hex>`, or `logs/context/<model>/<component>/<bucket>/<target>.log`."""


@dataclass(frozen=True)
class FolderFacts:
    """A folder of ours on its file system. `problem` says why nothing could be written; the rest is then unknown."""

    path: str
    problem: str = ""
    links: bool = True
    locks: bool = True
    syncs: bool = True
    names: bool = True
    keeps_times: bool = True
    case_sensitive: bool = True
    clock_skew_s: float = 0.0
    full: bool = False
    """The problem is that there is no space."""
    limit: int = 0
    """The longest path that can be made, where that is a concern; 0 where it isn't."""


@dataclass(frozen=True)
class StoreFacts:
    """What is in the store: manifests there are, those that were looked at, and those of them that are not sound."""

    manifests: int
    looked_at: int
    damaged: tuple[str, ...] = ()


def try_folder(path: Path) -> FolderFacts:
    """Try what a build does in the folder that is or would be at `path`; leaves nothing behind."""
    base = path
    while not base.is_dir() and base != base.parent:
        if base.exists():
            return FolderFacts(str(path), f"{base} is a file")
        base = base.parent
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=base) as folder:
            return _tried(path, Path(folder))
    except OSError as problem:
        full = problem.errno in (errno.ENOSPC, errno.EDQUOT)
        return FolderFacts(str(path), f"{problem.strerror or problem} ({base})", full=full)


def check_folder(name: str, what: str, facts: FolderFacts) -> Iterator[Finding]:
    """Findings about a folder; `what` says which it is."""
    if facts.problem:
        remedy, other = ("free some space", "on another disk") if facts.full else ("make it writable", "that is")
        if name == "store.folder":
            remedy += f", or set PIPELINE_STORE to a folder {other}"
        yield error(name, f"{what} can't be written", STORE, facts.path, why=facts.problem, remedy=remedy)
        return
    found = []
    if not facts.locks:
        why = "two builds at once could do the same work, and free what the other uses"
        remedy = "use a local disk, or one build at a time"
        found.append(error(name, f"{what}: files can't be locked there", STORE, facts.path, why=why, remedy=remedy))
    if not facts.names:
        why = "names with spaces, Hangul or emoji can't be made there"
        remedy = "name models, components and samples in ASCII, or use another disk"
        found.append(warning(name, f"{what}: only plain names", facts.path, why=why, remedy=remedy))
    if not facts.syncs:
        why = "after a power cut, files may be damaged; they would be found and made again"
        found.append(warning(name, f"{what}: written data can't be forced to the disk", facts.path, why=why))
    if not facts.links:
        why = "each step gets copies of its inputs: slower, and more space"
        remedy = "use a disk with hard links"
        found.append(warning(name, f"{what}: no hard links", facts.path, why=why, remedy=remedy))
    if not facts.keeps_times:
        why = "a file's modification time is its seal: without it, files are hashed each time they are used"
        found.append(warning(name, f"{what}: modification times are not kept", facts.path, why=why))
    if abs(facts.clock_skew_s) > _SKEW_S:
        what_skew = f"{what}: its clock is {facts.clock_skew_s:+.0f} s off"
        why = "changes of files may go unnoticed"
        found.append(warning(name, what_skew, facts.path, why=why, remedy="synchronize the clocks"))
    if facts.limit and len(facts.path) + _LONGEST_BELOW > facts.limit:
        why = f"paths may have {facts.limit} characters, and the folder's has {len(facts.path)}"
        remedy = "enable long paths in Windows, or move the project to a shorter path"
        found.append(warning(name, f"{what}: paths may become too long", facts.path, why=why, remedy=remedy))
    yield from found
    if not found:
        case = "" if facts.case_sensitive else "; upper and lower case are the same there"
        yield ok(name, f"{what} can be written, with hard links, locks, fsync and any name{case}", facts.path)


def look_at(root: Path) -> StoreFacts:
    """Some of a store's manifests, evenly spread: whether each can be read, and all that it names is there, in full."""
    paths = sorted((root / "manifests").glob("*/*.json"))
    chosen = paths[:: max(1, len(paths) // _SAMPLE)]
    damaged = []
    for path in chosen:
        manifest = read_manifest(path)
        if manifest is None:
            if path.exists():  # another build may have dropped it
                damaged.append(f"{path.name} is not what was written")
            continue
        for name, entry in manifest.files.items():
            try:
                size = os.stat(root / "objects" / entry.sha256[:2] / entry.sha256).st_size
            except OSError:
                damaged.append(f"{name} of {manifest.stage} is missing")
                continue
            if size != entry.bytes:
                damaged.append(f"{name} of {manifest.stage} has {size} bytes, not {entry.bytes}")
    return StoreFacts(len(paths), len(chosen), tuple(damaged))


def check_store(facts: StoreFacts) -> Finding:
    """Whether the store is sound, as far as was looked."""
    name = "store.health"
    if facts.damaged:
        shown = "; ".join(facts.damaged[:3]) + ("; …" if len(facts.damaged) > 3 else "")
        what = f"{len(facts.damaged)} damaged files in {facts.looked_at} of {facts.manifests} outputs"
        remedy = "run 'doit fsck': it drops what is damaged, and the next build makes it again"
        return warning(name, what, why=shown, remedy=remedy)
    if not facts.manifests:
        return ok(name, "the store is empty")
    why = "'doit fsck' hashes all of it"
    return ok(name, f"{facts.looked_at} of {facts.manifests} outputs looked at, all files of full size", why=why)


def _tried(path: Path, folder: Path) -> FolderFacts:
    probe = folder / "probe"
    probe.write_bytes(b"x")
    skew = probe.stat().st_mtime - time.time()
    limit = _WINDOWS_PATH if os.name == "nt" and not _long_path(folder) else 0
    return FolderFacts(
        str(path),
        links=_succeeds(lambda: os.link(probe, folder / "link")),
        locks=_succeeds(lambda: _lock(folder / "lock")),
        syncs=_succeeds(lambda: _sync(probe)),
        names=_succeeds(lambda: (folder / _NAME).write_bytes(b"")),
        keeps_times=_keeps_times(probe),
        case_sensitive=not (folder / "PROBE").exists(),
        clock_skew_s=skew,
        limit=limit,
    )


def _succeeds(act: object) -> bool:
    assert callable(act)
    try:
        act()
    except (OSError, NotImplementedError, ImportError):
        return False
    return True


def _sync(path: Path) -> None:
    with path.open("ab") as stream:
        stream.write(b"y")
        stream.flush()
        os.fsync(stream.fileno())


def _lock(path: Path) -> None:
    """Lock a file twice, the second time from another thread: that has to fail, else locks are only for show."""
    from filelock import FileLock, Timeout

    refused = []

    def second() -> None:
        try:
            FileLock(path, thread_local=False).acquire(timeout=0)
        except Timeout:
            refused.append(True)

    with FileLock(path, timeout=2):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    if not refused:
        raise OSError("the second lock was given while the first was held")


def _keeps_times(path: Path) -> bool:
    sealed = 1_000_000_002  # as the store seals payloads: even seconds of long ago
    os.utime(path, (sealed, sealed))
    return path.stat().st_mtime == sealed


def _long_path(folder: Path) -> bool:
    deep = folder.joinpath(*["d" * 60] * 5)
    return _succeeds(lambda: deep.mkdir(parents=True))
