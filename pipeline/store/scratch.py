"""Makes scratch folders for half-written files, and removes those of processes that died."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.store.durable import visible
from pipeline.store.locks import TakenError, held, try_held, undone

_LOCK = ".lock"


class Scratch:
    """Makes empty folders under `parent`, each beside a lock file that its owner holds while it lives."""

    def __init__(self, parent: Path) -> None:
        self.parent = parent

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """A folder of our own, removed at the end. Raises OSError if it can't be made."""
        self.parent.mkdir(parents=True, exist_ok=True)
        folder = self.parent / uuid.uuid4().hex
        # Another process may hold the lock for a moment before us, in `collect`.
        with held(folder.with_suffix(_LOCK), "a folder of its own"), undone(lambda: _remove(folder), folder.mkdir):
            yield folder

    def collect(self) -> list[Path]:
        """Remove scratch folders of processes that died. Returns what was removed. Fast if there is nothing."""
        removed: list[Path] = []
        for path in visible(self.parent):
            if path.suffix == _LOCK:
                folder = path.with_suffix("")
            elif not path.with_suffix(_LOCK).exists():  # a lock is made before its folder, and removed after it
                folder = path
            else:
                continue
            with contextlib.suppress(TakenError, OSError), try_held(folder.with_suffix(_LOCK)):
                _remove(folder)
                if not os.path.lexists(folder):
                    removed.append(path)
        return removed


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        if os.name == "nt":  # Windows does not remove read-only files, such as payloads that were placed here
            for file in path.rglob("*"):
                with contextlib.suppress(OSError):
                    file.chmod(0o644)
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
