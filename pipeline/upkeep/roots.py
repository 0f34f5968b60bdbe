"""The checkouts that use a store. Each writes an entry there, so that none frees what another needs."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import stat
import time
from pathlib import Path

from pipeline.errors import StoreError
from pipeline.frozen import dataclass
from pipeline.plan.workspace import Workspace
from pipeline.store import sealed_json
from pipeline.store.durable import listed, write_atomically
from pipeline.store.scratch import Scratch

_DAY_S = 86400
_ENTRY = re.compile(r"[0-9a-f]{32}\.json")
_FORGOTTEN_S = 90 * _DAY_S  # a checkout on another machine counts as gone after this time without an entry


@dataclass(frozen=True)
class Root:
    """A checkout: its folder, its machine, and when it last signed its entry (seconds since the epoch)."""

    entry: Path
    """The file that it wrote into the store."""
    folder: Path
    host: str
    signed_at_s: float

    @property
    def is_open(self) -> bool:
        """Whether we can see what it needs: its folder is on this machine, and we may read it."""
        steps = self.folder / ".build" / "steps"
        folder = steps if os.path.lexists(steps) else self.folder
        return self._is_here and os.access(folder, os.R_OK | os.X_OK)

    @property
    def is_gone(self) -> bool:
        """Whether the checkout was deleted, or can't be looked into and has not built for long."""
        if self._is_here:
            try:
                return not stat.S_ISDIR(os.stat(self.folder).st_mode)
            except (FileNotFoundError, NotADirectoryError):
                return True
            except OSError:
                pass
        return time.time() - self.signed_at_s > _FORGOTTEN_S

    @property
    def _is_here(self) -> bool:
        return self.host == socket.gethostname()


def sign(workspace: Workspace) -> None:
    """Write this checkout's entry in the store, and renew it once a day. A disk that refuses the write is no error."""
    folder = os.path.abspath(workspace.root)
    host = socket.gethostname()
    name = hashlib.sha256(f"{host}\0{folder}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
    path = workspace.store.root / "roots" / f"{name}.json"
    with contextlib.suppress(OSError):
        try:
            if time.time() - os.stat(path).st_mtime > _DAY_S:
                os.utime(path)
        except FileNotFoundError:
            with Scratch(workspace.store.root / "tmp").folder() as scratch:
                write_atomically(path, sealed_json.dump({"folder": folder, "host": host}), folder=scratch)


def is_entry(path: Path) -> bool:
    """Whether a file has the name of an entry."""
    return _ENTRY.fullmatch(path.name) is not None


def read(path: Path) -> Root | None:
    """The checkout that an entry names; None for a missing or damaged entry. Raises OSError if it can't be read."""
    try:
        content = sealed_json.load(path.read_bytes())
        return Root(path, Path(content["folder"]), content["host"], path.stat().st_mtime)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def signed(store: Path) -> list[Root]:
    """All checkouts that use the store at this folder.

    Raises OSError when an entry can't be read, and StoreError for a damaged one, which stands for an unknown checkout.
    """
    found = []
    for path in filter(is_entry, listed(store / "roots")):
        root = read(path)
        if root is not None:
            found.append(root)
        elif os.path.lexists(path):
            raise StoreError(
                "it can't be told what is needed, so nothing is freed",
                where=str(path),
                why="it names a checkout that uses the store, and is damaged",
                remedy="run 'doit fsck', then 'doit build' in each checkout that uses this store: that enters it again",
            )
    return found
