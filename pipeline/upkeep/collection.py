"""`doit gc`: frees outputs that no checkout needs any more, by age and by size.

gc keeps what the configs of this checkout need, what other checkouts on this machine built last, and what either
published as artifacts. It can't see what a checkout needs that is on another machine or may not be read. While there is
such a checkout, gc keeps everything that was used in the last two days. If this checkout or the store can't be read, gc
frees nothing.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.errors import PipelineError, StoreError
from pipeline.model import Json, Manifest
from pipeline.plan.resolve import resolve
from pipeline.plan.steps import Step
from pipeline.plan.workspace import Workspace
from pipeline.release.published.artifact_folders import MANIFEST
from pipeline.release.published.artifacts import claims
from pipeline.store.durable import UNRELATED, disk_errors, files_below, folders_in, listed, remove
from pipeline.store.manifests import read_manifest
from pipeline.store.store import Store
from pipeline.upkeep import roots

_DAY_S = 86400
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MARGIN_S = 2 * _DAY_S  # uses are noted once a day


@dataclass
class Needed:
    """What must stay: outputs by key, payloads by digest. Outputs whose payloads were all published stay, too."""

    keys: set[str] = field(default_factory=set)
    payloads: set[str] = field(default_factory=set)
    published: set[str] = field(default_factory=set)
    is_partial: bool = False
    """Whether a checkout can be read only in part."""

    def add(self, manifest: Manifest) -> None:
        """Keep an output, wherever its manifest was found."""
        self.keys.add(manifest.key)
        self.payloads |= {entry.sha256 for entry in manifest.files.values()}


@dataclass(frozen=True)
class Output:
    """One output in the store: its manifest, and when it was used last (seconds since the epoch)."""

    path: Path
    manifest: Manifest
    used_at_s: float

    @property
    def payloads(self) -> set[str]:
        """The digests of its files."""
        return {entry.sha256 for entry in self.manifest.files.values()}


@dataclass(frozen=True)
class Plan:
    """What is to be freed, and what then remains."""

    outputs: Sequence[Output]
    payloads: Sequence[Path]
    freed_bytes: int
    kept_outputs: int
    kept_bytes: int
    needed_bytes: int

    def as_json(self) -> dict[str, Json]:
        """The figures of the plan, for a program."""
        return {
            "freed_outputs": len(self.outputs),
            "freed_files": len(self.payloads),
            "freed_bytes": self.freed_bytes,
            "kept_outputs": self.kept_outputs,
            "kept_bytes": self.kept_bytes,
            "needed_bytes": self.needed_bytes,
        }


def needed(workspace: Workspace, steps: Iterable[Step]) -> Needed:
    """What this checkout and others need. `steps` are those of this checkout, each after the steps it depends on.

    Raises StoreError when that can't be told.
    """
    found = Needed()
    outputs: dict[str, Manifest] = {}
    with _legible():
        for step in steps:
            for manifest in _of_step(step, workspace, outputs):
                found.add(manifest)
                outputs[step.id] = manifest
        _add_artifacts(found, workspace.artifacts)
        for root in roots.signed(workspace.store.root):
            if root.is_open and root.folder != Path(os.path.abspath(workspace.root)):
                _add_checkout(found, root.folder)
    return found


def _add_checkout(found: Needed, folder: Path) -> None:
    """What another checkout needs, as far as it may be read."""
    try:
        for path in files_below(folder / ".build" / "steps"):
            if path.suffix == ".json":
                if built := read_manifest(path):
                    found.add(built)
                elif os.path.lexists(path):
                    found.is_partial = True
        _add_artifacts(found, folder / "artifacts")
    except OSError as error:
        if error.errno in UNRELATED:
            raise
        found.is_partial = True


@contextmanager
def _legible() -> Iterator[None]:
    """Turn an OSError into a StoreError that says that nothing is freed."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            "it can't be told what is needed, so nothing is freed",
            where=str(error.filename or ""),
            why=error.strerror or str(error),
            remedy="mend the permissions of this path, or what else keeps it from being read, "
            "then run the same command again",
        ) from error


def _known(path: Path) -> Manifest | None:
    """The manifest in a file, None if there is no file. Raises OSError, or StoreError for a damaged one."""
    if manifest := read_manifest(path):
        return manifest
    try:
        with path.open("rb"):
            pass
    except FileNotFoundError:
        if not os.path.lexists(path):
            return None
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.ELOOP) and not path.is_dir():
            raise
    raise _damaged(path)


def _damaged(path: Path) -> StoreError:
    return StoreError(
        "it can't be told what is needed, so nothing is freed",
        where=str(path),
        why="it is not what was written",
        remedy="run 'doit fsck', which drops what is damaged, then the same command again",
    )


def _of_step(step: Step, workspace: Workspace, outputs: dict[str, Manifest]) -> Iterator[Manifest]:
    """The output that a step made last, and the one that it would make now, if the store has that.

    `outputs` are those of the steps before it.
    """
    if last := _known(workspace.current(step)):
        yield last
    try:
        resolved = resolve(step, workspace, outputs)
    except (PipelineError, OSError, LookupError, TypeError, ValueError, AssertionError):
        return  # a source or sample that isn't there now, or records that changed places
    keys = (resolved.key, resolved.climb_key) if resolved is not None else ()
    for key in filter(None, keys):
        if due := read_manifest(workspace.store.manifest_path(key)):
            yield due


def _add_artifacts(found: Needed, artifacts: Path) -> None:
    for model in folders_in(artifacts):
        for folder in folders_in(model):
            found.published |= {*claims(folder / MANIFEST).values()}


def plan(store: Store, needs: Needed, *, days: float | None, max_bytes: int | None) -> Plan:
    """What to free: outputs not used for `days`, then the longest unused ones until the rest fits into `max_bytes`.

    Raises StoreError when something in the store can't be read.
    """
    now = time.time()
    with _legible():
        outputs = sorted(_outputs(store), key=lambda output: output.used_at_s)
        payloads = _payloads(store)
        sizes = {path.name: path.lstat().st_size for path in payloads}
        away = any(not root.is_open and not root.is_gone for root in roots.signed(store.root))
    margin_s = _MARGIN_S if away or needs.is_partial else 0.0

    def is_needed(output: Output) -> bool:
        fresh = now - output.used_at_s < margin_s
        published = bool(output.payloads) and output.payloads <= needs.published
        return fresh or published or output.manifest.key in needs.keys

    unneeded = [output for output in outputs if not is_needed(output)]
    holders = Counter(sha256 for output in outputs for sha256 in output.payloads)
    holders.update(needs.payloads | needs.published)
    held_bytes = sum(size for sha256, size in sizes.items() if holders[sha256])
    freed: list[Output] = []
    for output in unneeded:
        old = days is not None and now - output.used_at_s > days * _DAY_S
        if not (old or (max_bytes is not None and held_bytes > max_bytes)):
            continue
        freed.append(output)
        holders.subtract(output.payloads)
        held_bytes -= sum(sizes.get(sha256, 0) for sha256 in output.payloads if not holders[sha256])
    paths = [path for path in payloads if not holders[path.name]]
    spared = (needs.payloads | needs.published).union(*(output.payloads for output in outputs if is_needed(output)))
    return Plan(
        freed,
        paths,
        sum(sizes[path.name] for path in paths),
        len(outputs) - len(freed),
        held_bytes,
        sum(sizes.get(sha256, 0) for sha256 in spared),
    )


def free(chosen: Plan, store: Store) -> None:
    """Delete what was chosen, and the entries of checkouts that are gone.

    Manifests go first, so that none is ever left without its payloads.

    Raises StoreError when something can't be deleted.
    """
    with disk_errors(store.root, "the store can't be written"):
        for path in (*(output.path for output in chosen.outputs), *chosen.payloads):
            if not remove(path, store.tmp):
                path.unlink()  # which says why
    with _legible():
        for root in roots.signed(store.root):
            if root.is_gone:
                remove(root.entry)


def forget_steps(workspace: Workspace, steps: Iterable[Step]) -> None:
    """Delete the records of steps that no config has any more. Other checkouts would keep outputs for these records.

    Raises StoreError when that can't be told.
    """
    known = {workspace.current(step) for step in steps}
    with _legible():
        for path in files_below(workspace.build / "steps"):
            if path.suffix == ".json" and path not in known:
                remove(path)


def _outputs(store: Store) -> Iterator[Output]:
    for folder in folders_in(store.root / "manifests"):
        for path in listed(folder):
            if path.suffix != ".json" or not _SHA256.fullmatch(path.stem):
                continue  # not ours
            if manifest := _known(path):
                if manifest.key != path.stem:
                    raise _damaged(path)
                yield Output(path, manifest, path.stat().st_mtime)


def _payloads(store: Store) -> list[Path]:
    found = [path for folder in folders_in(store.root / "objects") for path in listed(folder)]
    return [path for path in found if _SHA256.fullmatch(path.name)]
