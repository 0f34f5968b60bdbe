"""Writes archives to `artifacts/releases/`, unless they are up to date; checks them; removes those of a model."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from pipeline.config.release_checks import FOLDER
from pipeline.contracts.codec import Contract
from pipeline.errors import PipelineError
from pipeline.frozen import dataclass
from pipeline.model import FileEntry, Manifest
from pipeline.plan.workspace import Workspace
from pipeline.release.archives.archive import Member, UnusableError, write_archive
from pipeline.store import sealed_json
from pipeline.store.digests import sha256_file
from pipeline.store.durable import disk_errors, visible, write_atomically
from pipeline.store.finding import FOREIGN, LEFT, FsckFinding

SUFFIX = ".qnn.zip"
_AGAIN = "the next 'doit package' writes it again"
_STAYS = "left alone: no config makes it any more"


@dataclass(frozen=True)
class _Record(Contract):
    """What was written under a name: the model, and the SHA-256 of the list of members and of the whole archive."""

    model: str
    members: str
    archive: str


def folder_of(workspace: Workspace) -> Path:
    """The folder that archives are written to."""
    return workspace.artifacts / FOLDER


def write(path: Path, model: str, members: Mapping[str, Member], workspace: Workspace) -> tuple[str, bool]:
    """Write the archive of these members unless it is up to date. Returns its SHA-256, and whether it was written.

    Raises:
        DamagedError: a payload in the store was corrupt, and was dropped.
        StoreError: the disk can't be written, or a member that is not in the store was changed.
    """
    listing = "".join(f"{member.sha256}  {name}\n" for name, member in sorted(members.items()))
    wanted = hashlib.sha256(listing.encode()).hexdigest()
    known = _recorded(path, workspace)
    if known and known.members == wanted and _is_unchanged(path, known, workspace):
        return known.archive, False
    with disk_errors(path, "the release can't be written"), workspace.scratch.folder() as scratch:
        try:
            sha256 = write_archive(path, members, scratch)
        except UnusableError:
            _look_at_payloads(members, workspace, scratch)
            raise
        workspace.memo.remember(path, sha256)
        record = sealed_json.dump(_Record(model, wanted, sha256).to_json())
        write_atomically(_record(path, workspace), record, durable=False, folder=scratch)
    return sha256, True


def names(path: Path) -> Collection[str]:
    """The names in an archive; none if it is missing or can't be read."""
    try:
        with ZipFile(path) as archive:
            return archive.namelist()
    except (OSError, ValueError, NotImplementedError, BadZipFile):
        return ()


def check(expected: Collection[Path], workspace: Workspace) -> Iterator[FsckFinding]:
    """Read all archives on disk and report what is wrong with them; `expected` are those that configs make.

    Forgets the digest of a damaged archive, so that the next `package` reads the file.
    """
    for path in visible(folder_of(workspace)):
        if not path.name.endswith(SUFFIX):
            yield FsckFinding(path, FOREIGN, LEFT, is_wrong=False)
        elif problem := _fault(path, _recorded(path, workspace)):
            workspace.memo.forget(path)
            yield FsckFinding(path, problem, _AGAIN if path in expected else _STAYS)


def remove(model: str, expected: Iterable[Path], workspace: Workspace) -> list[Path]:
    """Delete the archives of all versions of a model. Returns the deleted files."""
    folder = folder_of(workspace)
    with disk_errors(folder, "releases can't be removed"):
        paths = {path for path in visible(folder) if (known := _recorded(path, workspace)) and known.model == model}
        paths |= {path for path in expected if path.is_file()}
        for path in paths:
            path.unlink()
            workspace.memo.forget(path)
            _record(path, workspace).unlink(missing_ok=True)
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    workspace.memo.save()
    return sorted(paths)


def _look_at_payloads(members: Mapping[str, Member], workspace: Workspace, scratch: Path) -> None:
    """Have the store check the payloads among the members; it drops a corrupt one and raises DamagedError."""
    stored = {
        name: FileEntry(member.sha256, member.size)
        for name, member in members.items()
        if member.source == workspace.store.object_path(member.sha256)
    }
    workspace.store.place(Manifest("release", "", stored, {}), scratch / "payloads")


def _fault(path: Path, known: _Record | None) -> str:
    """What is wrong with an archive, "" if nothing is. An archive without a record is compared with its own index."""
    from pipeline.release.verify import verify_release  # libraries for signatures and schemas

    try:
        if known and sha256_file(path) == known.archive:
            return ""
        verify_release(path)
    except PipelineError as error:
        return error.what.removeprefix(f"{path.name}: ")
    except FileNotFoundError:
        return ""  # removed since it was listed
    except OSError as error:
        return f"it can't be read: {error.strerror}"
    return "it is not what was packaged here" if known else ""


def _is_unchanged(path: Path, known: _Record, workspace: Workspace) -> bool:
    try:
        return workspace.memo.sha256(path) == known.archive
    except OSError:
        return False


def _record(path: Path, workspace: Workspace) -> Path:
    return workspace.build / "releases" / f"{path.name}.json"


def _recorded(path: Path, workspace: Workspace) -> _Record | None:
    """What was last written under the name; None if there is no record."""
    try:
        return _Record.from_json(sealed_json.load(_record(path, workspace).read_bytes()))
    except (OSError, ValueError):
        return None
