"""Records the files and payloads that a decision read, and what their stats were; while these are equal, it holds.

Code that decides something by a file notes the file here before it reads it: :func:`note_file`, :func:`note_payload`,
:func:`note_used`. Outside of :func:`recording` these functions do nothing.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pipeline.model import FileEntry, Manifest

MISSING = ""
"""The stamp of a file that is missing or can't be reached."""
NEVER = "never"
"""A stamp that no file has."""
# A file changed again within the clock's granularity keeps its mtime; such a stamp is not remembered (git's "racy"
# rule). 100 ms is above the timer tick of every supported kernel and below what a person notices.
RACY_NS = 100_000_000
_here = threading.local()


class FilesRead:
    """The files that a decision read.

    `files` has the stamp of each file and folder, "" for one that is missing. `payloads` has the bytes of each payload
    by its digest: its seal tells whether it changed. `used` are the keys of outputs whose manifests in the store say
    when they were last of use.
    """

    def __init__(
        self,
        files: Mapping[str, str] | None = None,
        payloads: Mapping[str, int] | None = None,
        used: Iterable[str] = (),
    ) -> None:
        self.files = {**(files or {})}
        self.payloads = {**(payloads or {})}
        self.used = dict.fromkeys(used)

    def are_unchanged(self, fault: Callable[[FileEntry], str], known: dict[str, bool]) -> bool:
        """Whether files and payloads look the same now.

        `fault` says what is wrong with a payload, "" if nothing is; `known` has which are good, and is added to. Raises
        what `fault` raises.
        """
        for path, stamp in self.files.items():
            if stamp_of(path) != stamp:
                return False
        for sha256, size in self.payloads.items():
            if sha256 not in known:
                known[sha256] = not fault(FileEntry(sha256, size))
            if not known[sha256]:
                return False
        return True

    def are_unchanged_for_a_while(self) -> bool:
        """Whether each file looks the same now, and changed so long ago that another change would show in its stamp."""
        now_ns = time.time_ns()
        for path, stamp in self.files.items():
            try:
                status = os.stat(path)
            except OSError:
                if stamp != MISSING:
                    return False
                continue
            if stamp_of_status(status) != stamp or now_ns - max(status.st_mtime_ns, status.st_ctime_ns) < RACY_NS:
                return False
        return True


@contextmanager
def recording(read: FilesRead) -> Iterator[None]:
    """Note in `read` what this thread reads meanwhile."""
    outer = getattr(_here, "read", None)
    _here.read = read
    try:
        yield
    finally:
        _here.read = outer


def note_file(path: Path | str) -> None:
    """Note a file or folder that is about to be looked at."""
    read: FilesRead | None = getattr(_here, "read", None)
    if read is not None and (name := os.path.abspath(path)) not in read.files:
        read.files[name] = stamp_of(name)


def note_payload(entry: FileEntry) -> None:
    """Note a payload that is about to be looked at."""
    read: FilesRead | None = getattr(_here, "read", None)
    if read is not None:
        read.payloads[entry.sha256] = entry.bytes


def note_used(manifest: Manifest) -> None:
    """Note an output that is in use."""
    read: FilesRead | None = getattr(_here, "read", None)
    if read is not None:
        read.used[manifest.key] = None


def stamp_of(path: str) -> str:
    """A text that changes when a file's content does: size, times and inode; "" for a file that can't be reached."""
    try:
        return stamp_of_status(os.stat(path))
    except OSError:
        return MISSING


def is_settled(path: Path) -> bool:
    """Whether a file changed so long ago that another change would show in its stamp."""
    try:
        status = path.stat()
    except OSError:
        return False
    return time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > RACY_NS


def stamp_of_status(status: os.stat_result) -> str:
    """The stamp of a file with this status, as :func:`stamp_of` gives it."""
    return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}:{status.st_ino}"
