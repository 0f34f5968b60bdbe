"""The shared store: what another machine has made is restored from it, and what is made here is written to it.

Payloads are written first and the manifest last, so who finds a manifest finds all that it names. Whatever comes from
there is checked before it is used: other machines write there, and disks and networks lose bits. What is damaged is
named, not used, and written anew once it was made again here.

A build never depends on it: a place that is out of reach costs some seconds and a warning, then nothing.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from pipeline.model import Manifest
from pipeline.shared.damage import Damage
from pipeline.shared.known import Known
from pipeline.shared.names import manifest_name
from pipeline.shared.reach import Reach
from pipeline.shared.reading import Reading
from pipeline.shared.writing import Writing
from pipeline.storage.store import Store


@dataclass(frozen=True)
class Trial:
    """What became of a try: why it can't be read or written, "" if it can."""

    shown: str
    unread: str = ""
    unwritten: str = ""


@dataclass(frozen=True)
class _Build:
    known: Known
    reading: Reading
    writing: Writing


class SharedStore:
    """The shared store at `url`, a folder or what fsspec opens.

    `where` says where that was configured. What is known of it is kept in the file `record`. Safe to use from several
    threads. It does nothing before :meth:`open`.
    """

    def __init__(self, url: str, where: str, root: Path, record: Path, store: Store) -> None:
        self._record, self._store = record, store
        self._reach = Reach(url, where, root, store.root, lambda text: store.tell(text))  # which changes
        self._build: _Build | None = None

    @property
    def unread(self) -> str:
        """Why nothing can be had from it, "" if it can, as far as is known."""
        return self._reach.gone

    def open(self) -> None:
        """A build begins: from now on it may be asked, and is written to."""
        known = Known(self._record, self._reach.name)
        damage = Damage(self._reach, known)
        self._build = _Build(
            known,
            Reading(self._reach, known, damage, self._store),
            Writing(self._reach, known, damage, self._store),
        )

    def find(self, key: str, stage: str) -> Manifest | None:
        """What is said to be there under a key; its payloads were not looked at.

        Raises:
            ConfigError: the URL can't be one.
        """
        return self._build.reading.find(key, stage) if self._build else None

    def fetch(self, manifest: Manifest, what: str) -> bool:
        """Have what the manifest names, and then the manifest, in the store; False if that is not to be had.

        Raises:
            StoreError: the store of this machine can't be written, or is full.
        """
        return self._build is not None and self._build.reading.fetch(manifest, what)

    def drop_damaged(self, key: str) -> bool:
        """Whether an output was found damaged there, which this host may not make; see :meth:`Reading.drop_damaged`."""
        return self._build is not None and self._build.reading.drop_damaged(key)

    def offer(self, manifest: Manifest) -> None:
        """Have an output of this build written there beside it, if it is not known to be there.

        Raises:
            ConfigError: the URL can't be one.
        """
        if self._build:
            self._build.writing.offer(manifest)

    def close(self) -> None:
        """The build has nothing more to do: wait until all is written that can be.

        Returns at once when we are stopping; what was not written is offered by the next build.
        """
        build, self._build = self._build, None
        if build:
            with contextlib.suppress(KeyboardInterrupt):  # whoever stops us ends the process himself
                build.writing.drain()
            build.known.save()

    def try_out(self) -> Trial:
        """Ask for something, and write a small file and delete it.

        Raises:
            ConfigError: the URL can't be one.
        """
        reach, name = self._reach, "tmp/doctor"
        if (place := reach.place()) is None:
            return Trial(reach.shown, reach.gone, reach.gone)
        try:
            reach.ask(lambda: place.read(manifest_name("0" * 64), 1))
        except Exception as error:
            why = reach.why(error)
            return Trial(reach.shown, why, why)
        try:
            reach.ask(lambda: place.replace(name, b"doctor"))
        except Exception as error:
            return Trial(reach.shown, unwritten=reach.why(error))
        with contextlib.suppress(Exception):  # who may write may be forbidden to delete
            reach.ask(lambda: place.remove(name))
        return Trial(reach.shown)
