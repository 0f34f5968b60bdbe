"""Writes outputs to a shared store while the build goes on: the payloads first, the manifest last."""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections import deque
from collections.abc import Iterable

from pipeline.errors import StoreError
from pipeline.model import FileEntry, Manifest
from pipeline.processes import stopping
from pipeline.sizes import human_bytes
from pipeline.store.manifests import dump_manifest
from pipeline.store.shared.connection import Rarely, Reach
from pipeline.store.shared.names import MANIFEST_BYTES, manifest_name, object_name
from pipeline.store.shared.place import SharedPlace
from pipeline.store.shared.remote_index import Known
from pipeline.store.store import Store

_WRITERS = 3
_AWAKE_S = 0.05
_SETTLE_S = 0.005  # a step of a cluster waits for it
_UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOENT, errno.ENOTDIR)
_REFUSALS = (PermissionError, FileNotFoundError, NotADirectoryError, NotImplementedError)


class Writing:
    """Writes outputs of a store to a place during one build, in a few threads. Several threads may use it.

    No queue outlives the process: a later build offers again what was not written.
    """

    def __init__(self, reach: Reach, known: Known, store: Store) -> None:
        self._reach, self._known, self._store = reach, known, store
        self._lock = threading.Lock()
        self._unwritable = ""
        self._offered: set[str] = set()
        self._pending: deque[Manifest] = deque()
        self._unfinished = 0  # pending, or being written
        self._writers = 0
        self._sent_bytes = 0
        self._sending: dict[str, threading.Lock] = {}

    def offer(self, manifest: Manifest) -> None:
        """Have an output written, unless the place is known to have it. Raises ConfigError if the URL is wrong."""
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

    def settle(self, keys: Iterable[str]) -> None:
        """Wait until outputs that were offered are there.

        Raises:
            StoreError: one of them can't be written.
            KeyboardInterrupt: we are stopping.
        """
        for key in keys:
            while True:
                busy = self._unfinished  # looked at first: a writer notes the key before it counts down
                if key in self._known:
                    break
                if not busy or self._unwritable or self._reach.gone:
                    raise StoreError(
                        "the shared store does not take what a worker of the cluster would read",
                        where=self._reach.shown,
                        why=self._unwritable or self._reach.gone or "a file of it is damaged or missing here",
                        remedy="see that it can be written, then run the same command again",
                    )
                stopping.check()
                time.sleep(_SETTLE_S)

    def drain(self) -> None:
        """Wait until all offered outputs are written or given up, or until we are stopping."""
        rarely = Rarely(self._reach.tell)
        while self._unfinished and not stopping.asked():
            time.sleep(_AWAKE_S)
            sent, left = self._sent_bytes, self._unfinished
            said = f"writing to the shared store: {human_bytes(sent)}, {left} outputs to go"
            rarely(lambda said=said: said)  # type: ignore[misc]
        place = self._reach.place() if self._sent_bytes and not self._reach.gone and not stopping.asked() else None
        if place is not None:
            with contextlib.suppress(Exception):
                self._reach.ask(place.collect)

    def _write_pending(self) -> None:
        """Write pending outputs until none is left."""
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
        """Write those of an output's payloads that the place lacks, then its manifest."""
        if (place := self._reach.place()) is None:
            return
        found, known, name = self._found(place, manifest), self._known, manifest_name(manifest.key)
        payloads = {each.sha256: each for each in manifest.files.values()}
        if known.is_bad(manifest.key) and not any(map(known.is_bad, payloads)):
            known.note_bad(manifest.key, payloads.keys())  # they may be damaged as well
        if found is None or found.files == manifest.files:  # a bucket may have expired old payloads
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

    def _found(self, place: SharedPlace, manifest: Manifest) -> Manifest | None:
        """The manifest that the place has under an output's key; None if it has none, or a damaged one."""
        if self._known.is_bad(manifest.key):
            return None
        data = self._reach.ask(lambda: place.read(manifest_name(manifest.key), MANIFEST_BYTES))
        return None if data is None else self._known.checked(manifest.key, manifest.stage, data)

    def _send(self, place: SharedPlace, entry: FileEntry) -> bool:
        """Write a payload there unless it is there; False if our own copy is missing or damaged."""
        name = object_name(entry.sha256)
        if self._known.is_bad(entry.sha256) or self._reach.ask(lambda: place.size(name)) != entry.bytes:
            if self._store.payloads.fault(entry, hashed=True):
                return False  # the step that needs it finds this, too, and tells
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
