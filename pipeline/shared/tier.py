"""The shared store: what another machine has made is restored from it, and what is made here is written to it.

    objects/<2 hex>/<sha256>       payloads
    manifests/<2 hex>/<key>.json   what the step with that key produced, as in the store of a machine

Payloads are written first and the manifest last, so who finds a manifest finds all that it names. Whatever comes from
there is checked before it is used: other machines write there, and disks and networks lose bits. What is damaged is
named, not used, and written anew once it was made again here.

A build never depends on it: a place that is out of reach costs some seconds and a warning, then nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pipeline.errors import ConfigError
from pipeline.model import FileEntry, Manifest
from pipeline.shared.known import Known
from pipeline.shared.patience import GoneError, Patience
from pipeline.shared.place import FolderPlace, MismatchError, Moved, Place
from pipeline.storage.digests import sha256_file
from pipeline.storage.durable import disk_errors, is_full, no_room
from pipeline.storage.manifests import dump_manifest, parse_manifest
from pipeline.storage.payloads import MISSING
from pipeline.storage.store import Store
from pipeline.storage.urls import is_url, path_of, redacted, told
from pipeline.system import stopping

_WRITERS = 3
_READERS = 4  # files that are fetched at once
_MANIFEST_BYTES = 64 << 20
_LONG_S, _OFTEN_S = 5.0, 15.0  # when waiting is first told of, and how often after that
_AWAKE_S = 0.2
_UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOENT, errno.ENOTDIR)
_REFUSALS = (PermissionError, FileNotFoundError, NotADirectoryError, NotImplementedError)
_ODD = re.compile(r"(?!file://)[A-Za-z][\w+.-]+:")  # longer than a drive of Windows
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Trial:
    """What became of a try: why it can't be read or written, "" if it can."""

    shown: str
    unread: str = ""
    unwritten: str = ""


class SharedStore:
    """The shared store at `url`, a folder or what fsspec opens.

    `where` says where that was configured. What is known of it is kept in the file `record`. Safe to use from several
    threads. It does nothing before :meth:`open`.
    """

    def __init__(self, url: str, where: str, root: Path, record: Path, store: Store) -> None:
        self._url, self._where, self._root, self._record, self._store = url, where, root, record, store
        self.shown = redacted(url)
        self._patience = Patience(lambda: self._opened().size("manifests"))
        self._lock = threading.RLock()
        self._is_open = False
        self._place: Place | None = None
        self._mistake: ConfigError | None = None
        self._known: Known | None = None
        self._unwritable = ""
        self._told: set[str] = set()
        self._turns = threading.Semaphore(_READERS)
        self._pending: deque[Manifest] = deque()
        self._writers = 0
        self._offered: set[str] = set()
        self._unfinished = 0
        self._written_bytes = 0
        self._there: set[str] = set()
        self._sending: dict[str, threading.Lock] = {}

    @property
    def unread(self) -> str:
        """Why nothing can be had from it, "" if it can, as far as is known."""
        return self._patience.gone

    def open(self) -> None:
        """A build begins: from now on it may be asked, and is written to."""
        self._is_open = True

    def find(self, key: str, stage: str) -> Manifest | None:
        """What is said to be there under a key; its payloads were not looked at.

        Raises:
            ConfigError: the URL can't be one.
        """
        if not self._is_open or self._patience.gone:
            return None
        place = self._opened_or_gone()
        if place is None:
            return None
        data = self._had(lambda: self._patience.ask(lambda: place.read(_manifest_name(key), _MANIFEST_BYTES)))
        return None if data is None else self._checked(key, stage, data)

    def fetch(self, manifest: Manifest, what: str) -> bool:
        """Have what the manifest names, and then the manifest, in the store; False if that is not to be had.

        Raises:
            StoreError: the store of this machine can't be written, or is full.
        """
        place = self._opened_or_gone()
        if place is None:
            return False
        with self._store.scratch() as scratch, disk_errors(self._store.root):
            wanted = {each.sha256: each for each in manifest.files.values() if self._store.payloads.fault(each)}
            whole = sum(each.bytes for each in wanted.values())
            free = shutil.disk_usage(scratch).free
            if whole > free:
                self._tell_once(
                    manifest.key,
                    f"not restored from the shared store: {what} has {_size(whole)}, and {_size(free)} are free here",
                )
                return False
            telling, received = (
                self._progress(f"restoring {what} from the shared store", whole),
                dict[Path, FileEntry](),
            )
            for entry in wanted.values():
                path = scratch / entry.sha256
                done = sum(each.bytes for each in received.values())
                fault = self._fetched(place, entry, path, lambda moved, done=done: telling(done + moved))  # type: ignore[misc]
                if fault is None:
                    return False
                if fault:
                    name = next(name for name, each in manifest.files.items() if each.sha256 == entry.sha256)
                    good = {each.sha256 for each in received.values()}
                    self._note_damage(manifest.key, wanted.keys() - good, f"{name} of {what}", fault)
                    return False
                received[path] = entry
            self._store.receive(manifest, received)
        self._keys().add(manifest.key)
        return True

    def offer(self, manifest: Manifest) -> None:
        """Have an output of this build written there beside it, if it is not known to be there.

        Raises:
            ConfigError: the URL can't be one.
        """
        if not self._is_open or manifest.key in self._keys():
            return
        if self._opened_or_gone() is None or self._unwritable:
            return  # a later build offers it again
        with self._lock:
            if manifest.key in self._offered:
                return
            self._offered.add(manifest.key)
            self._pending.append(manifest)
            self._unfinished += 1
            if self._writers < _WRITERS:
                self._writers += 1
                threading.Thread(target=self._write_pending, name="shared store writer", daemon=True).start()

    def close(self) -> None:
        """The build has nothing more to do: wait until all is written that can be.

        Returns at once when we are stopping; what was not written is offered by the next build.
        """
        if not self._is_open:
            return
        with contextlib.suppress(KeyboardInterrupt):
            telling = self._progress("writing to the shared store", 0)
            while self._unfinished and not stopping.asked():
                time.sleep(_AWAKE_S / 4)
                telling(self._written_bytes)
        self._is_open = False
        place = self._place
        if self._written_bytes and place is not None and not self.unread and not stopping.asked():
            with contextlib.suppress(Exception):
                self._patience.ask(place.collect)
        if self._known is not None:
            self._known.save()

    def try_out(self) -> Trial:
        """Ask for something, and write a small file and delete it.

        Raises:
            ConfigError: the URL can't be one.
        """
        place, name = self._opened_or_gone(), f"tmp/doctor-{os.urandom(8).hex()}"
        if place is None:
            return Trial(self.shown, self._patience.gone, self._patience.gone)
        try:
            self._patience.ask(lambda: place.read(_manifest_name("0" * 64), 1))
        except Exception as error:
            why = self._why(error)
            return Trial(self.shown, why, why)
        try:
            self._patience.ask(lambda: place.replace(name, b"doctor"))
            self._patience.ask(lambda: place.remove(name))
        except Exception as error:
            return Trial(self.shown, unwritten=self._why(error))
        return Trial(self.shown)

    def _opened(self) -> Place:
        """The place. Raises ConfigError, and what libraries raise."""
        with self._lock:
            if self._mistake is not None:
                raise self._mistake
            if self._place is None:
                try:
                    self._place = self._open_place()
                except ConfigError as error:
                    self._mistake = error
                    raise
            return self._place

    def _open_place(self) -> Place:
        if not is_url(self._url):
            folder = self._folder()
            if folder.resolve() == self._store.root.resolve():
                remedy = "name another folder: this one is the store of this machine"
                raise ConfigError(f"nothing is shared by {self.shown}", where=self._where, remedy=remedy)
            return FolderPlace(folder)
        from pipeline.shared import fsspec_place

        fsspec_place.load(self._url, self._where)  # takes a second, whatever the other side does
        return self._patience.ask(lambda: fsspec_place.FsspecPlace.of(self._url, self._where))

    def _folder(self) -> Path:
        if _ODD.match(self._url):
            remedy = "write a folder, or a URL that fsspec opens, such as s3://bucket/folder"
            raise ConfigError(f"neither a folder nor a URL: {self.shown}", where=self._where, remedy=remedy)
        return self._root / Path(path_of(self._url)).expanduser()

    def _opened_or_gone(self) -> Place | None:
        """The place; None if it is out of reach. Raises ConfigError."""
        if self._patience.gone:
            return None
        return self._had(self._opened)

    def _keys(self) -> Known:
        with self._lock:
            if self._known is None:
                self._known = Known(self._record, self.shown if is_url(self._url) else str(self._folder()))
            return self._known

    def _checked(self, key: str, stage: str, data: bytes) -> Manifest | None:
        manifest = parse_manifest(data)
        if manifest is not None and (manifest.key, manifest.stage) == (key, stage):
            return manifest
        self._note_damage(key, (), f"what it knows of a step ({stage})", "it is not what was written")
        return None

    def _fetched(self, place: Place, entry: FileEntry, path: Path, during: Callable[[int], None]) -> str | None:
        """What is wrong with a payload that was fetched, "" if nothing is; None if the place is out of reach.

        Raises StoreError when there is no room for it.
        """

        def fetch(moved: Moved) -> str:
            try:
                return "" if place.fetch(_object_name(entry.sha256), path, entry.bytes, moved) else MISSING
            except MismatchError as error:
                return str(error)
            except PermissionError as error:
                return f"it can't be read: {told(error, self._url)}"

        with self._turn() as has_turn:
            fault = self._had(lambda: self._patience.move(fetch, during)) if has_turn else None
        if fault == "" and sha256_file(path) != entry.sha256:
            return "its SHA-256 is another one"
        return fault

    @contextmanager
    def _turn(self) -> Iterator[bool]:
        """While inside, one of few that fetch; False if the place is out of reach by now."""
        while not (has_turn := self._turns.acquire(timeout=_AWAKE_S)) and not self._patience.gone:
            stopping.check()
        try:
            yield has_turn
        finally:
            if has_turn:
                self._turns.release()

    def _had(self, act: Callable[[], _Answer]) -> _Answer | None:
        """What `act` returns; None, and a warning, when the place turns out to be out of reach."""
        try:
            return act()
        except ConfigError:
            raise
        except Exception as error:  # what the libraries behind fsspec raise has nothing in common
            if isinstance(error, OSError) and is_full(error):
                raise no_room("what the shared store has", error) from error
            self._give_up(error)
            return None

    def _give_up(self, error: Exception) -> None:
        why = self._why(error)
        self._patience.give_up(why)
        self._tell_once("gone", f"the shared store {self.shown} is left alone in this build: {self._patience.gone}")

    def _why(self, error: Exception) -> str:
        return str(error) if isinstance(error, GoneError) else told(error, self._url)

    def _write_pending(self) -> None:
        """Write what is pending, until nothing is."""
        while True:
            with self._lock:
                if not self._pending or stopping.asked():
                    self._writers -= 1
                    return
                manifest = self._pending.popleft()
            try:
                if not (self._patience.gone or self._unwritable):
                    self._write(manifest)
            except KeyboardInterrupt:
                continue
            except Exception as error:
                self._not_written(error)
            finally:
                with self._lock:
                    self._unfinished -= 1

    def _write(self, manifest: Manifest) -> None:
        """Write an output's payloads, then its manifest, as far as they are not there."""
        place, known, name = self._opened(), self._keys(), _manifest_name(manifest.key)
        if not known.is_bad(manifest.key):
            data = self._patience.ask(lambda: place.read(name, _MANIFEST_BYTES))
            if data is not None and self._checked(manifest.key, manifest.stage, data):
                known.add(manifest.key)
                return
        for entry in {each.sha256: each for each in manifest.files.values()}.values():
            with self._lock:
                sending = self._sending.setdefault(entry.sha256, threading.Lock())
            with sending:  # several outputs may have it
                if entry.sha256 not in self._there and not self._send(place, entry):
                    return
                self._there.add(entry.sha256)
        written = dump_manifest(manifest)
        if known.is_bad(manifest.key):
            self._patience.ask(lambda: place.replace(name, written))
        else:
            self._patience.ask(lambda: place.create(name, written))
        known.add(manifest.key)

    def _send(self, place: Place, entry: FileEntry) -> bool:
        """Write a payload unless it is there; False if it is not here any more as it was."""
        name, known = _object_name(entry.sha256), self._keys()
        if not known.is_bad(entry.sha256) and self._patience.ask(lambda: place.size(name)) == entry.bytes:
            return True
        if self._store.payloads.fault(entry, hashed=True):
            return False  # whoever needs it finds that out as well, and says so
        path, counted = self._store.object_path(entry.sha256), 0

        def count(sent: int) -> None:
            nonlocal counted
            with self._lock:
                self._written_bytes += sent - counted
            counted = sent

        self._patience.move(lambda moved: place.send(path, name, moved), count)
        count(entry.bytes)
        known.note_good(entry.sha256)
        return True

    def _not_written(self, error: Exception) -> None:
        if isinstance(error, _REFUSALS) or (isinstance(error, OSError) and error.errno in _UNWRITABLE):
            self._unwritable = self._why(error)
            self._tell_once(
                "unwritable",
                f"nothing more is written to the shared store {self.shown} in this build: {self._unwritable}",
            )
        else:
            self._give_up(error)

    def _note_damage(self, key: str, payloads: Iterable[str], what: str, fault: str) -> None:
        """Have an output written anew when it was made again, with the payloads of it that were not seen to be good."""
        self._keys().note_bad({key, *payloads})
        self._there.difference_update(payloads)
        again = "it is not used, and written anew when it was made again"
        self._tell_once(f"damaged {key}", f"damaged in the shared store: {what}: {fault}; {again}")

    def _progress(self, what: str, whole: int) -> Callable[[int], None]:
        """To be called with the bytes done: it prints a line when that takes long, and more every now and then."""
        due = time.monotonic() + _LONG_S

        def progress(done: int) -> None:
            nonlocal due
            if time.monotonic() > due:
                due = time.monotonic() + _OFTEN_S
                left = (
                    f"{_size(done)} of {_size(whole)}" if whole else f"{_size(done)}, {self._unfinished} outputs to go"
                )
                self._store.tell(f"{what}: {left}")

        return progress

    def _tell_once(self, about: str, text: str) -> None:
        with self._lock:
            if about in self._told:
                return
            self._told.add(about)
        self._store.tell(text)


def _manifest_name(key: str) -> str:
    return f"manifests/{key[:2]}/{key}.json"


def _object_name(sha256: str) -> str:
    return f"objects/{sha256[:2]}/{sha256}"


def _size(count: int) -> str:
    for unit, name in ((1 << 30, "GB"), (1 << 20, "MB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count / 1024:.1f} kB"
