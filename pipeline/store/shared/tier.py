"""The shared store: a build restores from it what another machine made, and writes to it what it makes itself.

Payloads are written before the manifest, so a manifest that is found has all its payloads. A build checks whatever
comes from there: other machines write there, and disks and networks lose bits. It tells of damaged outputs, does not
use them, and writes them again once it has made them.

A build never depends on it: a place that is out of reach costs some seconds and a warning, then nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from pipeline.frozen import dataclass
from pipeline.model import Manifest
from pipeline.store.shared.connection import Reach
from pipeline.store.shared.names import manifest_name
from pipeline.store.shared.reading import SharedReading
from pipeline.store.shared.remote_index import Known
from pipeline.store.shared.writing import Writing
from pipeline.store.store import Store


@dataclass(frozen=True)
class Reachability:
    """The result of a try: why the place `shown` can't be read or written, "" if it can."""

    shown: str
    unread: str = ""
    unwritten: str = ""


@dataclass(frozen=True)
class _Build:
    known: Known
    reading: SharedReading
    writing: Writing


class SharedStore:
    """The shared store at `url`, a folder or what fsspec opens.

    `where` says where that was configured. The file `record` keeps which outputs it has. Several threads may use it.
    It does nothing before :meth:`open`.
    """

    def __init__(self, url: str, where: str, root: Path, record: Path, store: Store) -> None:
        self._record, self._store = record, store
        self._reach = Reach(
            url, where, root, store.root, lambda text: store.tell(text)
        )  # store.tell may be replaced later
        self._build: _Build | None = None

    @property
    def name(self) -> str:
        """The place, without what is secret in its URL."""
        return self._reach.name

    def owes(self) -> bool:
        """Whether something is known to be damaged there, which is written again when it is asked for."""
        return Known(self._record, self._reach).owes

    def has_all(self, keys: Iterable[str]) -> bool:
        """Whether it is known to have these outputs; to be asked after :meth:`close`."""
        known = Known(self._record, self._reach)
        return all(key in known for key in keys)

    @property
    def unread(self) -> str:
        """Why nothing can be read from it; "" as long as nothing has failed."""
        return self._reach.gone

    def open(self) -> None:
        """Begin a build, which may read and write from now on."""
        known = Known(self._record, self._reach)
        each = (self._reach, known, self._store)
        self._build = _Build(known, SharedReading(*each), Writing(*each))

    def find(self, key: str, stage: str) -> Manifest | None:
        """As :meth:`SharedReading.find`; None outside of a build."""
        return self._build.reading.find(key, stage) if self._build else None

    def fetch(self, manifest: Manifest, what: str) -> bool:
        """As :meth:`SharedReading.fetch`; False outside of a build."""
        return self._build is not None and self._build.reading.fetch(manifest, what)

    def fetch_payloads(self, manifest: Manifest, what: str) -> bool:
        """As :meth:`SharedReading.fetch_payloads`; False outside of a build."""
        return self._build is not None and self._build.reading.fetch_payloads(manifest, what)

    def drop_damaged(self, key: str) -> bool:
        """As :meth:`SharedReading.drop_damaged`; False outside of a build."""
        return self._build is not None and self._build.reading.drop_damaged(key)

    def offer(self, manifest: Manifest) -> None:
        """As :meth:`Writing.offer`; does nothing outside of a build."""
        if self._build:
            self._build.writing.offer(manifest)

    def settle(self, keys: Iterable[str]) -> None:
        """As :meth:`Writing.settle`; does nothing outside of a build."""
        if self._build:
            self._build.writing.settle(keys)

    def close(self) -> None:
        """End a build: wait until its outputs are written there.

        Returns at once when we are stopping; the next build offers what was not written.
        """
        build, self._build = self._build, None
        if build:
            with contextlib.suppress(KeyboardInterrupt):  # whoever stops us also ends the process
                build.writing.drain()
            build.known.save()

    def try_out(self) -> Reachability:
        """Read something, then write a small file and delete it. Raises ConfigError if the URL is wrong."""
        reach, name = self._reach, "tmp/doctor"
        if (place := reach.place()) is None:
            return Reachability(reach.shown, reach.gone, reach.gone)
        try:
            reach.ask(lambda: place.read(manifest_name("0" * 64), 1))
        except Exception as error:
            why = reach.why(error)
            return Reachability(reach.shown, why, why)
        try:
            reach.ask(lambda: place.replace(name, b"doctor"))
        except Exception as error:
            return Reachability(reach.shown, unwritten=reach.why(error))
        with contextlib.suppress(Exception):  # some accounts may write and not delete
            reach.ask(lambda: place.remove(name))
        return Reachability(reach.shown)
