"""Unpacks the archive of a release once into a cache folder of ours, which its release.json's SHA-256 names.

Nothing is written but files that release.json lists, under paths that stay inside, of exactly the size and SHA-256 that
it gives. The folder gets its name when it is complete, so that whoever sees it may use it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO

from .contents import damaged, parse_index, read_index
from .errors import FormatError, ReleaseError
from .index import MAX_INDEX_BYTES, NAME, UNLISTED, File, Index

CACHE_VARIABLE = "QNN_RELEASE_CACHE"
_TEMPORARY = ".unpacking-"
_LOCK, _NEW = "lock", "new"
_ABANDONED_S = 24 * 3600.0
"""The age in seconds from which a folder counts as abandoned on systems without locks."""
_CHUNK_BYTES = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)
_RENAME_WAITS_S = (0.0, 0.1, 0.5, 2.0)
"""Seconds to wait before each try to rename a folder: on Windows a virus scanner may have a file in it open."""
_KEY_DIGITS = 32  # of 64: enough to be unique, and paths stay short on Windows


def default_cache() -> Path:
    """Where archives are unpacked: $QNN_RELEASE_CACHE, or `qnn-releases` where the platform keeps caches."""
    if given := os.environ.get(CACHE_VARIABLE):
        return Path(given)
    base = os.environ.get("LOCALAPPDATA") if sys.platform == "win32" else os.environ.get("XDG_CACHE_HOME")
    return Path(base or Path.home() / ".cache") / "qnn-releases"


def unpack(archive: Path, cache: Path) -> tuple[Path, Index]:
    """The folder with the files of an archive, which is unpacked now if it was not before, and the release's index.

    Raises:
        FormatError: it is no archive of a release, or has entries that a release has not.
        DamagedError: a file in it is not the one that its release.json names.
        ReleaseError: the archive can't be read, or the cache folder not be written.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            entries = _entries(opened, archive)
            text = _read(opened, entries[NAME])
            index = parse_index(text)
            folder = cache / index.digest[:_KEY_DIGITS]
            _remove_abandoned(cache)
            if not _is_complete(folder, index):
                _check_entries(entries, index, archive)
                _unpack(opened, entries, text, index, folder)
            return folder, index
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise _refused(archive, f"it can't be read as a ZIP file: {error}") from error
    except OSError as error:
        full = error.errno in _FULL
        raise ReleaseError(
            "the release can't be unpacked",
            where=str(error.filename or cache),
            why=error.strerror or str(error),
            next=f"{f'free {archive.stat().st_size} bytes' if full else 'mend the cause'},"
            f" or name another folder: cache=..., or {CACHE_VARIABLE}",
        ) from error


def _entries(opened: zipfile.ZipFile, archive: Path) -> dict[str, zipfile.ZipInfo]:
    entries: dict[str, zipfile.ZipInfo] = {}
    for entry in opened.infolist():
        name = entry.orig_filename  # `filename` was already made to look harmless
        if name in entries:
            raise _refused(archive, f"it holds {name!r} twice")
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1 or entry.compress_size != entry.file_size:
            raise _refused(archive, f"{name!r} is compressed or encrypted")
        if stat.S_IFMT(entry.external_attr >> 16) not in (0, stat.S_IFREG):
            raise _refused(archive, f"{name!r} is no plain file")
        entries[name] = entry
    if NAME not in entries:
        raise _refused(archive, f"it holds no {NAME}")
    return entries


def _read(opened: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    with opened.open(entry) as stream:
        return stream.read(MAX_INDEX_BYTES + 1)


def _check_entries(entries: dict[str, zipfile.ZipInfo], index: Index, archive: Path) -> None:
    """Refuse an archive that doesn't hold exactly the files of its index, before anything is written."""
    for name in sorted({*entries} - {*index.files, *UNLISTED}):
        raise _refused(archive, f"it holds {name!r}, which {NAME} doesn't list")
    for name, file in index.files.items():
        if name not in entries:
            raise damaged(name, archive, "the archive doesn't hold it")
        if entries[name].file_size != file.bytes:
            raise damaged(name, archive, f"it has {entries[name].file_size} bytes, not {file.bytes}")
    total = sum(file.bytes for file in index.files.values())
    if total > archive.stat().st_size:  # entries that overlap would be more than the archive
        raise _refused(archive, f"its files would have {total} bytes, more than the archive itself")


def _unpack(
    opened: zipfile.ZipFile, entries: dict[str, zipfile.ZipInfo], text: bytes, index: Index, folder: Path
) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _work_folder(folder.parent) as work:
        new = work / _NEW
        new.mkdir()
        for name, file in index.files.items():
            _extract(opened, entries[name], file, new / name)
        (new / NAME).write_bytes(text)
        _publish(new, folder, index)


def _extract(opened: zipfile.ZipFile, entry: zipfile.ZipInfo, file: File, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    digest, written = hashlib.sha256(), 0
    try:
        with opened.open(entry) as stream, path.open("xb") as out:
            while written <= file.bytes and (chunk := stream.read(_CHUNK_BYTES)):
                digest.update(chunk)
                written += out.write(chunk)
            out.flush()
            os.fsync(out.fileno())  # else a loss of power could leave zeros under a folder's final name
    except (zipfile.BadZipFile, EOFError) as error:
        raise damaged(entry.filename, path, str(error)) from error
    if written != file.bytes or digest.hexdigest() != file.sha256:
        raise damaged(entry.filename, Path(str(opened.filename)), "its SHA-256 differs")


def _publish(new: Path, folder: Path, index: Index) -> None:
    """Give a complete folder its name. Another process may have been faster; then its folder is as good."""
    for number, wait in enumerate(_RENAME_WAITS_S):
        time.sleep(wait)
        with contextlib.suppress(OSError):
            new.rename(folder)
            return
        if _is_complete(folder, index):
            return
        with contextlib.suppress(OSError):  # what is there is not whole: move it out of the way
            folder.rename(new.with_name(f"old{number}"))
    new.rename(folder)


def _is_complete(folder: Path, index: Index) -> bool:
    """Whether a folder holds all files of the index, by their sizes. Hashes are checked before a file is loaded."""
    try:
        return read_index(folder).digest == index.digest and all(
            (folder / name).stat().st_size == file.bytes for name, file in index.files.items()
        )
    except (OSError, ReleaseError):
        return False


@contextlib.contextmanager
def _work_folder(cache: Path) -> Iterator[Path]:
    """A folder in the cache that no other process removes while this one lives, and that is gone afterwards."""
    work, lock = _claimed(cache)
    try:
        yield work
    finally:
        lock.close()
        shutil.rmtree(work, ignore_errors=True)


def _claimed(cache: Path) -> tuple[Path, BinaryIO]:
    """A new folder, and a file in it that stays open, and except on Windows locked, while the folder is in use.

    The system closes and unlocks the file however the process ends. Without locks, the folder's age tells.
    """
    while True:
        work = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=cache))
        try:
            lock = (work / _LOCK).open("xb")
            if _lock(lock) is not False and (work / _LOCK).exists():
                return work, lock
            lock.close()  # another process was faster, and takes the folder for abandoned
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise


def _lock(lock: IO[bytes]) -> bool | None:
    """Whether this process has the lock now; None where there are no locks."""
    if sys.platform == "win32":
        return None  # not needed: what is open can't be removed
    else:  # noqa: RET505 - what follows a return is unreachable to mypy on that system
        import fcntl

        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return None
        return True


def _remove_abandoned(cache: Path) -> None:
    """Delete the work folders of processes that were killed while they unpacked."""
    with contextlib.suppress(OSError):
        for work in cache.glob(f"{_TEMPORARY}*"):
            _remove_if_abandoned(work)


def _remove_if_abandoned(work: Path) -> None:
    with contextlib.suppress(OSError), contextlib.ExitStack() as held:
        abandoned: bool | None = None
        with contextlib.suppress(FileNotFoundError):
            if sys.platform == "win32":
                (work / _LOCK).unlink()  # fails while it is open
                abandoned = True
            else:
                abandoned = _lock(held.enter_context((work / _LOCK).open("r+b")))
        if abandoned is None:  # nothing tells but its age
            abandoned = time.time() - work.stat().st_mtime > _ABANDONED_S
        if abandoned:
            shutil.rmtree(work / _NEW, ignore_errors=True)  # the lock goes last
            shutil.rmtree(work, ignore_errors=True)


def _refused(archive: Path, why: str) -> FormatError:
    return FormatError(
        "this file is no release that can be opened",
        where=str(archive),
        why=why,
        next="get the archive again, or name the file that packaging left",
    )
