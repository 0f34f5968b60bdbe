"""Files that are whole or not there: atomic replacement, what must survive a power cut, errors that name the disk."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
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
            where=str(error.filename or where),
            why=error.strerror or str(error),
            remedy=remedy,
        ) from error


def remove(path: Path) -> bool:
    """Delete a file if it is there, read-only or not; whether it is gone."""
    with contextlib.suppress(OSError):
        if os.name == "nt":
            path.chmod(0o644)  # Windows does not remove what is read-only
        path.unlink()
    return not os.path.lexists(path)
