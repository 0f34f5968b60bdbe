"""Writes outputs to a shared store, beside the build: the payloads first, the manifest last."""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections import deque

from pipeline.model import FileEntry, Manifest
from pipeline.shared.damage import Damage
from pipeline.shared.known import Known
from pipeline.shared.names import MANIFEST_BYTES, manifest_name, object_name
from pipeline.shared.place import Place
from pipeline.shared.reach import Rarely, Reach, size
from pipeline.storage.manifests import dump_manifest
from pipeline.storage.store import Store
from pipeline.system import stopping

_WRITERS = 3
_AWAKE_S = 0.05
_UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOENT, errno.ENOTDIR)
_REFUSALS = (PermissionError, FileNotFoundError, NotADirectoryError, NotImplementedError)


class Writing:
    """What is written from a store to a place in one build, by few threads. Safe to use from several.

    There is no queue that a kill could lose: what was not written is offered again by a later build.
    """

    def __init__(self, reach: Reach, known: Known, damage: Damage, store: Store) -> None:
        self._reach, self._known, self._damage, self._store = reach, known, damage, store
        self._lock = threading.Lock()
        self._unwritable = ""
        self._offered: set[str] = set()
        self._pending: deque[Manifest] = deque()
        self._unfinished = 0  # pending, or being written
        self._writers = 0
        self._sent_bytes = 0
        self._sending: dict[str, threading.Lock] = {}

    def offer(self, manifest: Manifest) -> None:
        """Write an output, if it is not known to be there. Raises ConfigError."""
        if manifest.key in self._known or self._reach.place() is None or self._unwritable:
            return
        with self._lock:
            if manifest.key in self._offered:
                return
            self._offered.add(manifest.key)
            self._pending.append(manifest)
            self._unfinished += 1
            if self._writers < _WRITERS:
                self._writers += 1
                threading.Thread(target=self._write_pending, name="shared store writer", daemon=True).start()

    def drain(self) -> None:
        """Wait until all is written that can be, or until we are stopping."""
        rarely = Rarely(self._reach.tell)
        while self._unfinished and not stopping.asked():
            time.sleep(_AWAKE_S)
            sent, left = self._sent_bytes, self._unfinished
            rarely(lambda sent=sent, left=left: f"writing to the shared store: {size(sent)}, {left} outputs to go")  # type: ignore[misc]
        place = self._reach.place() if self._sent_bytes and not self._reach.gone and not stopping.asked() else None
        if place is not None:
            with contextlib.suppress(Exception):
                self._reach.ask(place.collect)

    def _write_pending(self) -> None:
        """Write what is pending, until nothing is."""
        while True:
            with self._lock:
                if not self._pending or stopping.asked():
                    self._writers -= 1
                    return
                manifest = self._pending.popleft()
            try:
                if not (self._reach.gone or self._unwritable):
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
        if (place := self._reach.place()) is None:
            return
        found, known, name = self._found(place, manifest), self._known, manifest_name(manifest.key)
        payloads = {each.sha256: each for each in manifest.files.values()}
        if known.is_bad(manifest.key) and not any(map(known.is_bad, payloads)):
            known.note_bad(manifest.key, payloads.keys())  # nobody could tell whether they are, too
        if found is None or found.files == manifest.files:  # a bucket may have expired what an old payload was in
            for entry in payloads.values():
                with self._lock:
                    sending = self._sending.setdefault(entry.sha256, threading.Lock())
                with sending:  # several outputs may have it
                    if not known.has_payload(entry.sha256) and not self._send(place, entry):
                        return
        if known.is_bad(manifest.key):
            self._reach.ask(lambda: place.replace(name, dump_manifest(manifest)))
        elif found is None:
            self._reach.ask(lambda: place.create(name, dump_manifest(manifest)))
        known.add(manifest.key)

    def _found(self, place: Place, manifest: Manifest) -> Manifest | None:
        """What is there under the key of an output, unless it is known to be damaged, or found to be."""
        if self._known.is_bad(manifest.key):
            return None
        data = self._reach.ask(lambda: place.read(manifest_name(manifest.key), MANIFEST_BYTES))
        return None if data is None else self._damage.checked(manifest.key, manifest.stage, data)

    def _send(self, place: Place, entry: FileEntry) -> bool:
        """Have a payload there; False if it is not here any more as it was."""
        name = object_name(entry.sha256)
        if self._known.is_bad(entry.sha256) or self._reach.ask(lambda: place.size(name)) != entry.bytes:
            if self._store.payloads.fault(entry, hashed=True):
                return False  # whoever needs it finds that out as well, and says so
            path, counted = self._store.object_path(entry.sha256), 0

            def count(sent: int) -> None:
                nonlocal counted
                with self._lock:
                    self._sent_bytes += sent - counted
                counted = sent

            self._reach.move(lambda moved: place.send(path, name, moved), count)
            count(entry.bytes)
        self._known.add_payload(entry.sha256)
        return True

    def _not_written(self, error: Exception) -> None:
        if isinstance(error, _REFUSALS) or (isinstance(error, OSError) and error.errno in _UNWRITABLE):
            self._unwritable = self._reach.why(error)
            shown = self._reach.shown
            text = f"nothing more is written to the shared store {shown} in this build: {self._unwritable}"
            self._reach.tell_once("unwritable", text)
        else:
            self._reach.leave(error)
