"""Connects to the place where outputs are shared: on first use, and never again after the place was out of reach."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pipeline.errors import ConfigError
from pipeline.store.shared.call_timeouts import GoneError, Patience
from pipeline.store.shared.names import MANIFESTS
from pipeline.store.shared.place import FolderPlace, Moved, SharedPlace
from pipeline.store.urls import folder_of, is_url, path_of, protocol_of, redacted, told

_LONG_S, _OFTEN_S = 5.0, 15.0  # after how many seconds progress is first told, and how often after that
_Answer = TypeVar("_Answer")


class Reach:
    """The connection to the place at `url`: a folder, below `root` if it is relative, or a URL that fsspec opens.

    `where` says where the URL was configured; `own` is the store of this machine. `tell` gets each line for the user
    once. Several threads may use it.
    """

    def __init__(self, url: str, where: str, root: Path, own: Path, tell: Callable[[str], object]) -> None:
        self._url, self._where, self._root, self._own, self._tell = url, where, root, own, tell
        self.shown = redacted(url)
        self.name = self.shown if is_url(url) else str(root / path_of(url))
        """The name of the place in files that outlive a build."""
        self._patience = Patience(lambda: self._opened().size(MANIFESTS))
        self._opening, self._telling = threading.Lock(), threading.Lock()
        self._place: SharedPlace | None = None
        self._mistake: ConfigError | None = None
        self._told: set[str] = set()

    @property
    def gone(self) -> str:
        """Why the place is left alone; "" while it is in use."""
        return self._patience.gone

    def place(self) -> SharedPlace | None:
        """The place; None if it is out of reach. Raises ConfigError if the URL is wrong."""
        return None if self.gone else self.had(self._opened)

    def ask(self, act: Callable[[], _Answer]) -> _Answer:
        """As :meth:`Patience.ask`."""
        return self._patience.ask(act)

    def move(self, act: Callable[[Moved], _Answer], during: Callable[[int], None]) -> _Answer:
        """As :meth:`Patience.move`."""
        return self._patience.move(act, during)

    def had(self, act: Callable[[], _Answer]) -> _Answer | None:
        """What `act` returns; None if it fails, after which the place is left alone."""
        try:
            return act()
        except ConfigError:
            raise
        except Exception as error:  # errors of the libraries behind fsspec share no class
            self.leave(error)
            return None

    def leave(self, error: Exception) -> None:
        """Leave the place alone for the rest of this build, and tell why."""
        self._patience.give_up(self.why(error))
        self.tell_once("gone", f"the shared store {self.shown} is left alone in this build: {self.gone}")

    def why(self, error: Exception) -> str:
        """The text of an error, without secrets."""
        return why(error, self._url)

    def tell(self, text: str) -> None:
        """Tell the user something."""
        self._tell(text)

    def tell_once(self, about: str, text: str) -> None:
        """Tell the user something, unless something was told about the same thing."""
        with self._telling:
            if about in self._told:
                return
            self._told.add(about)
        self._tell(text)

    def _opened(self) -> SharedPlace:
        """The place, opened on the first call. Raises ConfigError, and whatever libraries raise."""
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

    def _open(self) -> SharedPlace:
        if not is_url(self._url):
            folder = self._root / folder_of(self._url, self._where)
            if folder.resolve() in (self._own.resolve(), self._root.resolve()):
                raise self._own_fault("the store of this machine, or the project")
            return FolderPlace(folder)
        if protocol_of(self._url) == "memory":
            raise self._own_fault("the memory of one process")
        from pipeline.store.shared import fsspec_place

        fsspec_place.load(self._url, self._where)  # imports, which take a second of their own
        return self.ask(lambda: fsspec_place.FsspecPlace.of(self._url, self._where))

    def _own_fault(self, what: str) -> ConfigError:
        remedy = f"name a place that other machines reach: this one is {what}"
        return ConfigError(f"nothing is shared by {self.shown}", where=self._where, remedy=remedy)


def why(error: Exception, url: str) -> str:
    """The text of an error of a place at `url`, without secrets."""
    return str(error) if isinstance(error, GoneError) else told(error, url)


class Rarely:
    """Tells progress only when something takes long: first after some seconds, then every now and then."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell, self._due = tell, time.monotonic() + _LONG_S

    def __call__(self, text: Callable[[], str]) -> None:
        """Tell the text if it is time."""
        if time.monotonic() > self._due:
            self._due = time.monotonic() + _OFTEN_S
            self._tell(text())
