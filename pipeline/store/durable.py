"""Replaces files atomically, keeps them over a power cut, lists folders, and turns errors of the disk into ours."""

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
from pipeline.shortage import shortage

_WINDOWS = os.name == "nt"
UNRELATED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Numbers of errors that reading a file may give although nothing is wrong with the file."""


def write_atomically(path: Path, data: bytes, *, durable: bool = True, folder: Path | None = None) -> None:
    """Replace `path` by `data` so that readers see the old bytes or the new ones; if durable, also after a power cut.

    The bytes are first written in `folder`, which is tidied if we die, or else under a hidden name beside the file.
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
    """Rename a file over another, so that readers see either whole; also across file systems."""
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
    """Whether a name is one of our hidden names for half-written files."""
    return name.startswith(".") and name.endswith(".tmp")


def sync_file(path: Path) -> None:
    """Write a file's bytes to the disk before anything that is written later."""
    if not _WINDOWS:
        _sync(path, os.O_RDONLY)
        return
    mode = path.stat().st_mode  # Windows syncs only through a writable handle, and opens none of a read-only file
    path.chmod(mode | stat.S_IWRITE)
    try:
        _sync(path, os.O_RDWR)
    finally:
        path.chmod(mode)


def sync_folder(path: Path) -> None:
    """Write a folder's names to the disk. Where folders can't be synced, the system keeps renames in order."""
    if os.name != "nt":
        try:
            _sync(path, os.O_RDONLY)
        except OSError as error:  # some network file systems can't
            if error.errno not in (errno.EBADF, errno.EINVAL):
                raise


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")


def is_full(error: BaseException) -> bool:
    """Whether an error means that a disk, or our quota of it, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def no_room(what: str, error: OSError | None = None) -> StoreError:
    """The error for `what` if the disk of the store has no room for it."""
    return _of_machine(
        f"there is no room for {what}",
        where=str(error.filename or "") if error else "",
        why=(error.strerror if error else None) or os.strerror(errno.ENOSPC),
        remedy="free some space on the disk of the store, then run the same command again; what was built is kept",
    )


def _of_machine(what: str, *, where: str, why: str, remedy: str) -> StoreError:
    error = StoreError(what, where=where, why=why, remedy=remedy)
    error.of_machine = True
    return error


@contextmanager
def disk_errors(where: Path, what: str = "the disk refused a write") -> Iterator[None]:
    """Turn an OSError inside into a StoreError that begins with `what`, or into the error for a want of memory."""
    try:
        yield
    except OSError as error:
        if found := shortage(error):
            raise found from error
        raise _refused(error, where, what) from error


def _refused(error: OSError, where: Path, what: str) -> StoreError:
    where_to = str(error.filename2 or error.filename or where)  # of a rename, the file to be replaced
    return _of_machine(what, where=where_to, why=error.strerror or str(error), remedy=disk_remedy(error, what))


def disk_remedy(error: OSError, what: str = "") -> str:
    """What to do about a disk that refused to read or write `what`."""
    return {
        errno.ENOSPC: "free some space, then run the same command again; what was built is kept",
        errno.EDQUOT: "free some of your quota, then run the same command again; what was built is kept",
        errno.EISDIR: "move the folder away that is where the file belongs, then run the same command again; what was"
        " built is kept",
        errno.EROFS: "the file system is read-only: make it writable, or build in a copy of the project elsewhere",
        errno.EACCES: "give this user the right to write there, then run the same command again"
        + ("; PIPELINE_STORE chooses another store" if what.startswith("the store") else ""),
    }.get(error.errno or 0, "mend the cause, then run the same command again; what was built is kept")


def listed(folder: Path) -> list[Path]:
    """What is in a folder, sorted; nothing if it is missing. Raises OSError if the folder can't be read.

    `Path.glob` and `rglob` take an unreadable folder for empty. Code that deletes whatever nobody names must not.
    """
    try:
        with os.scandir(folder) as entries:
            return sorted(folder / entry.name for entry in entries)
    except FileNotFoundError:
        if folder.is_symlink():
            raise  # a link to a disk that is not mounted
        return []


def visible(folder: Path) -> list[Path]:
    """What is in a folder, sorted; nothing if the folder is missing or can't be read."""
    try:
        return listed(folder)
    except OSError:
        return []


def folders_in(folder: Path) -> list[Path]:
    """The folders in a folder, and links to folders. Raises OSError as :func:`listed`."""
    return [path for path in listed(folder) if leads_to_folder(path)]


def files_below(folder: Path) -> Iterator[Path]:
    """All files, also links and others, in a folder and in those below it. Raises OSError as :func:`listed`."""
    for path in listed(folder):
        if leads_to_folder(path):
            yield from files_below(path)
        else:
            yield path


def leads_to_folder(path: Path) -> bool:
    """Whether a path is a folder, or a link to one. Raises OSError if the system can't tell."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except FileNotFoundError:
        if path.is_symlink():
            raise
        return False


def is_folder(path: Path) -> bool:
    """Whether a path is a folder, and no link to one. Raises OSError if the system can't tell."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def remove(path: Path, aside: Path | None = None) -> bool:
    """Delete a file, even a read-only one. Returns whether the path is free.

    A folder in its place is moved into `aside`, a scratch folder that is tidied later.
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
