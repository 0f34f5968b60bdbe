"""Restores outputs from a shared store, and checks whatever comes from there."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pipeline.model import FileEntry, Manifest
from pipeline.processes import stopping
from pipeline.sizes import human_bytes
from pipeline.store.digests import sha256_file
from pipeline.store.durable import disk_errors, is_full, no_room
from pipeline.store.payloads import MISSING
from pipeline.store.shared.connection import Rarely, Reach
from pipeline.store.shared.names import MANIFEST_BYTES, manifest_name, object_name
from pipeline.store.shared.place import MismatchError, Moved, SharedPlace
from pipeline.store.shared.remote_index import Known
from pipeline.store.store import Store

_READERS = 4  # files that are fetched at once
_AWAKE_S = 0.2


class SharedReading:
    """Restores outputs from a place into a store during one build. Several threads may use it."""

    def __init__(self, reach: Reach, known: Known, store: Store) -> None:
        self._reach, self._known, self._store = reach, known, store
        self._turns = threading.Semaphore(_READERS)

    def find(self, key: str, stage: str) -> Manifest | None:
        """The manifest that the place has under a key; None if it has none or is out of reach.

        Does not look at the payloads. Raises ConfigError if the URL is wrong.
        """
        if (place := self._reach.place()) is None:
            return None
        reach, name = self._reach, manifest_name(key)
        data = reach.had(lambda: reach.ask(lambda: place.read(name, MANIFEST_BYTES)))
        return None if data is None else self._known.checked(key, stage, data)

    def fetch(self, manifest: Manifest, what: str) -> bool:
        """Put a manifest's payloads, then the manifest, into the store; False if the place does not give them.

        Raises:
            StoreError: the store of this machine can't be written, or is full.
        """
        if not self._fetch(manifest, what, partial(self._store.receive, manifest)):
            return False
        self._known.add(manifest.key)
        return True

    def fetch_payloads(self, manifest: Manifest, what: str) -> bool:
        """As :meth:`fetch`, for a manifest that is narrowed to what a step reads: it is not kept under its key."""
        return self._fetch(manifest, what, self._store.take)

    def _fetch(self, manifest: Manifest, what: str, keep: Callable[[Mapping[Path, FileEntry]], None]) -> bool:
        if (place := self._reach.place()) is None:
            return False
        with self._store.scratch() as scratch, disk_errors(self._store.root):
            names = {entry.sha256: name for name, entry in manifest.files.items() if self._store.payloads.fault(entry)}
            wanted = {sha256: manifest.files[name] for sha256, name in names.items()}
            if not self._has_room(manifest.key, what, sum(each.bytes for each in wanted.values()), scratch):
                return False
            received: dict[Path, FileEntry] = {}
            telling = self._telling(what, wanted, received)
            for sha256, entry in wanted.items():
                path = scratch / sha256
                fault = self._fetched(place, entry, path, telling)
                if fault is None:
                    return False
                if fault:
                    good = {each.sha256 for each in received.values()}
                    self._known.note_damage(manifest.key, wanted.keys() - good, f"{names[sha256]} of {what}", fault)
                    return False
                received[path] = entry
            keep(received)
        return True

    def drop_damaged(self, key: str) -> bool:
        """Whether an output is damaged there; deletes those of its payloads that may be damaged, if we may.

        For a host that can't make the output itself: hosts that have the output notice a missing payload and write it
        again, but do not notice a damaged one.
        """
        doubtful, place = self._known.doubtful(key), None if self._reach.gone else self._reach.place()
        if doubtful is None or place is None:
            return doubtful is not None
        for name in map(object_name, sorted(doubtful)):
            with contextlib.suppress(Exception):  # some accounts may only read
                self._reach.ask(lambda name=name: place.remove(name))  # type: ignore[misc]
        return True

    def _has_room(self, key: str, what: str, whole: int, folder: Path) -> bool:
        if whole <= (free := shutil.disk_usage(folder).free):
            return True
        sizes = f"{what} has {human_bytes(whole)}, and {human_bytes(free)} are free here"
        text = f"not restored from the shared store: {sizes}"
        self._reach.tell_once(key, text)
        return False

    def _telling(
        self, what: str, wanted: dict[str, FileEntry], received: dict[Path, FileEntry]
    ) -> Callable[[int], None]:
        """A function that tells progress now and then; its argument is the bytes that arrived of the current file."""
        rarely, whole = Rarely(self._reach.tell), sum(each.bytes for each in wanted.values())

        def telling(moved: int) -> None:
            done = sum(each.bytes for each in received.values()) + moved
            rarely(lambda: f"restoring {what} from the shared store: {human_bytes(done)} of {human_bytes(whole)}")

        return telling

    def _fetched(self, place: SharedPlace, entry: FileEntry, path: Path, during: Callable[[int], None]) -> str | None:
        """Fetch a payload and say what is wrong with it, "" if nothing is; None if the place is out of reach.

        Raises StoreError when the disk has no room for it.
        """

        def fetch(moved: Moved) -> str:
            try:
                return "" if place.fetch(object_name(entry.sha256), path, entry.bytes, moved) else MISSING
            except MismatchError as error:
                return str(error)
            except PermissionError as error:
                return f"it can't be read: {self._reach.why(error)}"

        def fetched() -> str:
            try:
                return self._reach.move(fetch, during)
            except OSError as error:
                if is_full(error):
                    raise no_room("what the shared store has", error) from error
                raise

        with self._turn() as has_turn:
            fault = self._reach.had(fetched) if has_turn else None
        if fault == "" and sha256_file(path) != entry.sha256:
            return "its SHA-256 is another one"
        return fault

    @contextmanager
    def _turn(self) -> Iterator[bool]:
        """Wait until fewer than `_READERS` threads fetch; yields False if the place is out of reach by then."""
        while not (has_turn := self._turns.acquire(timeout=_AWAKE_S)) and not self._reach.gone:
            stopping.check()
        try:
            yield has_turn
        finally:
            if has_turn:
                self._turns.release()
