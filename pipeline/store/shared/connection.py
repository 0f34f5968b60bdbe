"""The way to the place where outputs are shared: opened when first asked for, left alone once it is out of reach."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pipeline.errors import ConfigError
from pipeline.shared.names import MANIFESTS
from pipeline.shared.patience import GoneError, Patience
from pipeline.shared.place import FolderPlace, Moved, Place
from pipeline.storage.urls import folder_of, is_url, path_of, protocol_of, redacted, told

_LONG_S, _OFTEN_S = 5.0, 15.0  # when waiting is first told of, and how often after that
_Answer = TypeVar("_Answer")


class Reach:
    """The place at `url`, a folder (below `root` if it is relative) or what fsspec opens.

    `where` says where that was configured; `own` is the store of this machine. What is to be known is told by `tell`,
    once. Safe to use from several threads.
    """

    def __init__(self, url: str, where: str, root: Path, own: Path, tell: Callable[[str], object]) -> None:
        self._url, self._where, self._root, self._own, self._tell = url, where, root, own, tell
        self.shown = redacted(url)
        self.name = self.shown if is_url(url) else str(root / path_of(url))
        """What it is called between builds."""
        self._patience = Patience(lambda: self._opened().size(MANIFESTS))
        self._opening, self._telling = threading.Lock(), threading.Lock()
        self._place: Place | None = None
        self._mistake: ConfigError | None = None
        self._told: set[str] = set()

    @property
    def gone(self) -> str:
        """Why it is left alone; "" while it is not."""
        return self._patience.gone

    def place(self) -> Place | None:
        """The place; None if it is out of reach.

        Raises:
            ConfigError: the URL can't be one.
        """
        return None if self.gone else self.had(self._opened)

    def ask(self, act: Callable[[], _Answer]) -> _Answer:
        """What a small question comes to. Raises GoneError when there is no answer, or what the answer is."""
        return self._patience.ask(act)

    def move(self, act: Callable[[Moved], _Answer], during: Callable[[int], None]) -> _Answer:
        """As :meth:`ask`, of what takes as long as it takes: `during` is called now and then with the bytes moved."""
        return self._patience.move(act, during)

    def had(self, act: Callable[[], _Answer]) -> _Answer | None:
        """What `act` returns; None, and a line of text, when the place turns out to be out of reach."""
        try:
            return act()
        except ConfigError:
            raise
        except Exception as error:  # what the libraries behind fsspec raise has nothing in common
            self.leave(error)
            return None

    def leave(self, error: Exception) -> None:
        """Ask nothing more of it in this build, and say why."""
        self._patience.give_up(self.why(error))
        self.tell_once("gone", f"the shared store {self.shown} is left alone in this build: {self.gone}")

    def why(self, error: Exception) -> str:
        """What an error says, without what is secret."""
        return str(error) if isinstance(error, GoneError) else told(error, self._url)

    def tell(self, text: str) -> None:
        """Say something."""
        self._tell(text)

    def tell_once(self, about: str, text: str) -> None:
        """Say something, unless something was said about it."""
        with self._telling:
            if about in self._told:
                return
            self._told.add(about)
        self._tell(text)

    def _opened(self) -> Place:
        """The place. Raises ConfigError, and what libraries raise."""
        with self._opening:
            if self._mistake is not None:
                raise self._mistake
            if self._place is None:
                try:
                    self._place = self._open()
                except ConfigError as error:
                    self._mistake = error
                    raise
            return self._place

    def _open(self) -> Place:
        if not is_url(self._url):
            folder = self._root / folder_of(self._url, self._where)
            if folder.resolve() in (self._own.resolve(), self._root.resolve()):
                raise self._own_fault("the store of this machine, or the project")
            return FolderPlace(folder)
        if protocol_of(self._url) == "memory":
            raise self._own_fault("the memory of one process")
        from pipeline.shared import fsspec_place

        fsspec_place.load(self._url, self._where)  # takes a second, whatever the other side does
        return self.ask(lambda: fsspec_place.FsspecPlace.of(self._url, self._where))

    def _own_fault(self, what: str) -> ConfigError:
        remedy = f"name a place that other machines reach: this one is {what}"
        return ConfigError(f"nothing is shared by {self.shown}", where=self._where, remedy=remedy)


class Rarely:
    """Says how far something is when it takes long: after some seconds, then every now and then."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell, self._due = tell, time.monotonic() + _LONG_S

    def __call__(self, text: Callable[[], str]) -> None:
        """Say it if it is time."""
        if time.monotonic() > self._due:
            self._due = time.monotonic() + _OFTEN_S
            self._tell(text())


def size(count: int) -> str:
    """A number of bytes, as people read it."""
    for unit, name in ((1 << 30, "GB"), (1 << 20, "MB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count / 1024:.1f} kB"
