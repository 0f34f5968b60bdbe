"""Files that are whole or not there: atomic replacement, what must survive a power cut, errors that name the disk."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import StoreError

UNRELATED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""What keeps a file from being read and is no fault of the file."""


def write_atomically(path: Path, data: bytes, *, durable: bool = True, folder: Path | None = None) -> None:
    """Replace `path` by `data` so that a reader sees the old bytes or the new ones; after a power cut, too, if durable.

    The bytes are written in `folder`, which somebody tidies if we die, or else beside the file under a hidden name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(path) if folder is None else folder / path.name
    try:
        temporary.write_bytes(data)
        if durable:
            sync_file(temporary)
        move(temporary, path)
        if durable:
            sync_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def move(source: Path, destination: Path) -> None:
    """Rename a file over another, so that the other is seen whole or replaced, across file systems as well."""
    try:
        os.replace(source, destination)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        near = _beside(destination)
        try:
            shutil.copyfile(source, near)
            sync_file(near)
            os.replace(near, destination)
        finally:
            near.unlink(missing_ok=True)
        source.unlink()


def is_temporary(name: str) -> bool:
    """Whether a file has the hidden name of something half-written."""
    return name.startswith(".") and name.endswith(".tmp")


def sync_file(path: Path) -> None:
    """Have a file's bytes on the disk before anything that is written later."""
    _sync(path, os.O_RDONLY)


def sync_folder(path: Path) -> None:
    """Have a folder's names on the disk; where folders can't be synced, renames are kept in order by the system."""
    if os.name != "nt":
        _sync(path, os.O_RDONLY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    except OSError as error:  # Windows can't sync a read-only handle, some network file systems no folder
        if error.errno not in (errno.EBADF, errno.EINVAL):
            raise
    finally:
        os.close(descriptor)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")


def is_full(error: BaseException) -> bool:
    """Whether an error says that a disk, or a quota of one, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def no_room(what: str, error: OSError | None = None) -> StoreError:
    """The error for something that the disk of the store has no room for."""
    return StoreError(
        f"there is no room for {what}",
        where=str(error.filename or "") if error else "",
        why=(error.strerror if error else None) or os.strerror(errno.ENOSPC),
        remedy="free some space on the disk of the store, then run the same command again; what was built is kept",
    )


@contextmanager
def disk_errors(where: Path, what: str = "the disk refused a write") -> Iterator[None]:
    """Turn an OSError inside into a StoreError that begins with `what`."""
    try:
        yield
    except OSError as error:
        remedy = {
            errno.ENOSPC: "free some space, then run the same command again; what was built is kept",
            errno.EDQUOT: "free some of your quota, then run the same command again; what was built is kept",
            errno.EROFS: "the file system is read-only: choose another folder with PIPELINE_STORE",
            errno.EACCES: "check the permissions of this folder, or choose another with PIPELINE_STORE",
        }.get(error.errno or 0, "mend the cause, then run the same command again; what was built is kept")
        raise StoreError(
            what,
            where=str(error.filename2 or error.filename or where),  # of a rename, what could not be replaced
            why=error.strerror or str(error),
            remedy=remedy,
        ) from error


def listed(folder: Path) -> list[Path]:
    """What is in a folder, sorted; nothing if it isn't there. Raises OSError if that can't be told.

    `Path.glob` and `rglob` take what they can't read for empty: who deletes what nobody names must not.
    """
    try:
        with os.scandir(folder) as entries:
            return sorted(folder / entry.name for entry in entries)
    except FileNotFoundError:
        if folder.is_symlink():
            raise  # it leads to where a disk is missing
        return []


def folders_in(folder: Path) -> list[Path]:
    """The folders in a folder, also those that links lead to. Raises OSError as :func:`listed`."""
    return [path for path in listed(folder) if leads_to_folder(path)]


def files_below(folder: Path) -> Iterator[Path]:
    """What is in a folder and in all folders below, but for the folders. Raises OSError as :func:`listed`."""
    for path in listed(folder):
        if leads_to_folder(path):
            yield from files_below(path)
        else:
            yield path


def leads_to_folder(path: Path) -> bool:
    """Whether a path is a folder, or a link to one. Raises OSError if that can't be told."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except FileNotFoundError:
        if path.is_symlink():
            raise
        return False


def is_folder(path: Path) -> bool:
    """Whether a path is a folder, and no link to one. Raises OSError if that can't be told."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def remove(path: Path, aside: Path | None = None) -> bool:
    """Delete a file if it is there, read-only or not; whether it is gone.

    A folder in its place is moved into `aside`, a folder for what is half-written, whose leftovers somebody tidies.
    """
    with contextlib.suppress(OSError):
        if aside is not None and is_folder(path):
            aside.mkdir(parents=True, exist_ok=True)
            path.rename(aside / uuid.uuid4().hex)
            return not os.path.lexists(path)
        if os.name == "nt":
            path.chmod(0o644)  # Windows does not remove what is read-only
        path.unlink()
    return not os.path.lexists(path)
