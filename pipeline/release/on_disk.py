"""`artifacts/releases/` on disk: is an archive what was written there; write it; check all; remove those of a model."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from pipeline.errors import PipelineError
from pipeline.findings import FOREIGN, LEFT, Finding
from pipeline.model import FileEntry, Manifest
from pipeline.release.archive import Member, UnusableError, write_archive
from pipeline.release_checks import FOLDER
from pipeline.storage import sealed_json
from pipeline.storage.digests import sha256_file
from pipeline.storage.durable import disk_errors, write_atomically
from pipeline.workspace import Workspace

SUFFIX = ".qnn.zip"
_AGAIN = "the next 'doit package' writes it again"
_STAYS = "left alone: no config makes it any more"


@dataclass(frozen=True)
class _Record:
    """What was written under a name: of which model, and the digests of the list of its members and of the archive."""

    model: str
    members: str
    archive: str


def folder_of(workspace: Workspace) -> Path:
    """Where archives are."""
    return workspace.artifacts / FOLDER


def write(path: Path, model: str, members: Mapping[str, Member], workspace: Workspace) -> tuple[str, bool]:
    """Have the archive of these members there; its SHA-256, and whether it had to be written for that.

    Raises:
        DamagedError: a payload in the store went bad, and was dropped.
        StoreError: the disk refuses; a file that is not of the store is not what it was.
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
        record = sealed_json.dump(asdict(_Record(model, wanted, sha256)))
        write_atomically(_record(path, workspace), record, durable=False, folder=scratch)
    return sha256, True


def names(path: Path) -> Collection[str]:
    """The names in an archive; none if there is none, or it can't be read."""
    try:
        with ZipFile(path) as archive:
            return archive.namelist()
    except (OSError, ValueError, NotImplementedError, BadZipFile):
        return ()


def check(expected: Collection[Path], workspace: Workspace) -> Iterator[Finding]:
    """What is wrong with the archives that are there, all of whose bytes are read; `expected` are those of the configs.

    The digest of a damaged one is forgotten, so that the next `package` looks at the file.
    """
    for path in _listed(folder_of(workspace)):
        if not path.name.endswith(SUFFIX):
            yield Finding(path, FOREIGN, LEFT, is_wrong=False)
        elif problem := _fault(path, _recorded(path, workspace)):
            workspace.memo.forget(path)
            yield Finding(path, problem, _AGAIN if path in expected else _STAYS)


def remove(model: str, expected: Iterable[Path], workspace: Workspace) -> list[Path]:
    """Delete the archives of a model, those of other versions, too; the files deleted."""
    folder = folder_of(workspace)
    with disk_errors(folder, "releases can't be removed"):
        paths = {path for path in _listed(folder) if (known := _recorded(path, workspace)) and known.model == model}
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
    """Have the store drop what went bad: that raises DamagedError."""
    stored = {
        name: FileEntry(member.sha256, member.size)
        for name, member in members.items()
        if member.source == workspace.store.object_path(member.sha256)
    }
    workspace.store.place(Manifest("release", "", stored, {}), scratch / "payloads")


def _fault(path: Path, known: _Record | None) -> str:
    """What is wrong with an archive; one that nothing is known of is held against what it says itself."""
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
    """What was written under the name last; None if that is not known."""
    try:
        raw = sealed_json.load(_record(path, workspace).read_bytes())
        return _Record(str(raw["model"]), str(raw["members"]), str(raw["archive"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
