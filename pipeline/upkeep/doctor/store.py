"""Checks whether the store and the folders of a build can be written, and what their file systems can do."""

from __future__ import annotations

import errno
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pipeline.errors import ConfigError
from pipeline.frozen import dataclass
from pipeline.store.manifests import read_manifest
from pipeline.store.shared.tier import Reachability, SharedStore
from pipeline.upkeep.doctor.finding import CONFIG, STORE, Check, Finding

_HEALTH, _SHARED = Check("store.health", STORE), Check("store.shared", CONFIG)
_SAMPLE = 300
"""How many manifests are looked at. `doit fsck` looks at all of them and hashes the files that they name."""

_SKEW_S = 5.0
_NAME = "한국어 🙂 space"
_WINDOWS_PATH = 260
_LONGEST_BELOW = 150
"""About how many characters the longest path has below the store or the build folder.

Such paths are `objects/ab/<64 hex>` and `logs/context/<model>/<component>/<bucket>/<target>.log`.
"""


@dataclass(frozen=True)
class FolderFacts:
    """One of our folders and its file system. If nothing could be written, `problem` says why, and no more is known."""

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
    """The problem is that the disk is full."""
    limit: int = 0
    """The most characters that a path can have; 0 if there is no such limit."""


@dataclass(frozen=True)
class StoreFacts:
    """How many manifests the store has, how many were looked at, and which of those are damaged."""

    manifests: int
    looked_at: int
    damaged: tuple[str, ...] = ()


def try_folder(path: Path) -> FolderFacts:
    """Try what a build does in the folder at `path`, or in the one where it would be made. Leaves nothing behind."""
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
    check = Check(name, STORE, facts.path)
    if facts.problem:
        remedy, other = ("free some space", "on another disk") if facts.full else ("make it writable", "that is")
        if name == "store.folder":
            remedy += f", or set PIPELINE_STORE to a folder {other}"
        yield check.error(f"{what} can't be written", facts.problem, remedy)
        return
    if not facts.locks:
        why = "two builds at once could do the same work, and free what the other uses"
        yield check.error(f"{what}: files can't be locked there", why, "use a local disk, or one build at a time")
    drawbacks = [*_drawbacks(facts)]
    for drawback, why, remedy in drawbacks:
        yield check.warning(f"{what}: {drawback}", why, remedy)
    if facts.locks and not drawbacks:
        case = "" if facts.case_sensitive else "; upper and lower case are the same there"
        yield check.ok(f"{what} can be written, with hard links, locks, fsync and any name{case}")


def _drawbacks(facts: FolderFacts) -> Iterator[tuple[str, str, str]]:
    """What the file system lacks that a build can do without, why it matters, and what to do about it."""
    if not facts.names:
        why = "names with spaces, Hangul or emoji can't be made there"
        yield "only plain names", why, "name models, components and samples in ASCII, or use another disk"
    if not facts.syncs:
        why = "after a power cut, files may be damaged; they would be found and made again"
        yield "written data can't be forced to the disk", why, ""
    if not facts.links:
        yield (
            "no hard links",
            "each step gets copies of its inputs: slower, and more space",
            "use a disk with hard links",
        )
    if not facts.keeps_times:
        why = "a file's modification time is its seal: without it, files are hashed each time they are used"
        yield "modification times are not kept", why, ""
    if abs(facts.clock_skew_s) > _SKEW_S:
        skew = f"its clock is {facts.clock_skew_s:+.0f} s off"
        yield skew, "changes of files may go unnoticed", "synchronize the clocks"
    if facts.limit and len(facts.path) + _LONGEST_BELOW > facts.limit:
        why = f"paths may have {facts.limit} characters, and the folder's has {len(facts.path)}"
        yield "paths may become too long", why, "enable long paths in Windows, or move the project to a shorter path"


def look_at(root: Path) -> StoreFacts:
    """Read some of a store's manifests, evenly spread, and compare the sizes of the files that they name."""
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
    """Whether the manifests and files that were looked at are undamaged."""
    if facts.damaged:
        shown = "; ".join(facts.damaged[:3]) + ("; …" if len(facts.damaged) > 3 else "")
        what = f"{len(facts.damaged)} damaged files in {facts.looked_at} of {facts.manifests} outputs"
        return _HEALTH.warning(
            what, shown, "run 'doit fsck': it drops what is damaged, and the next build makes it again"
        )
    if not facts.manifests:
        return _HEALTH.ok("the store is empty")
    what = f"{facts.looked_at} of {facts.manifests} outputs looked at, all files of full size"
    return _HEALTH.ok(what, "'doit fsck' hashes all of it")


def check_shared(shared: SharedStore | None) -> Finding:
    """Whether the shared store can be read and written.

    A build goes on without it, so a failure is a warning. Only a wrong URL is an error, as it fails the build.
    """
    try:
        tried = shared.try_out() if shared else None
    except ConfigError as mistake:
        return _SHARED.about(mistake.where).error(mistake.what, mistake.why, mistake.remedy)
    return _shared(tried)


def _shared(tried: Reachability | None) -> Finding:
    if tried is None:
        return _SHARED.ok("there is no shared store")
    check = _SHARED.about(tried.shown)
    if tried.unread:
        remedy = "check the URL, the credentials in the environment and the network; builds go on without it"
        return check.warning("the shared store can't be read", tried.unread, remedy)
    if tried.unwritten:
        remedy = "ask for the right to write there, if builds of this machine are to be shared"
        return check.warning("the shared store can be read, and not written", tried.unwritten, remedy)
    return check.ok("the shared store can be read and written")


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


def _succeeds(act: Callable[[], object]) -> bool:
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
    """Lock a file twice, the second time from another thread; raises OSError if both are granted."""
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
