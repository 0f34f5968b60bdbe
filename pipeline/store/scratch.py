"""Folders for what is half-written. Those of processes that died are removed by whoever comes next."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.storage.locks import TakenError, held, try_held, undone

_LOCK = ".lock"


class Scratch:
    """Empty folders under `parent`, each beside a lock file that says that its owner lives."""

    def __init__(self, parent: Path) -> None:
        self.parent = parent

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """A folder of our own, removed at the end; raises OSError when it can't be made."""
        self.parent.mkdir(parents=True, exist_ok=True)
        folder = self.parent / uuid.uuid4().hex
        # Another process that collects may have our lock for a moment, before we do.
        with held(folder.with_suffix(_LOCK), "a folder of its own"), undone(lambda: _remove(folder)):
            folder.mkdir()
            yield folder

    def collect(self) -> list[Path]:
        """Remove what the dead left here; what was removed. Costs next to nothing when there is nothing."""
        removed: list[Path] = []
        for path in _listed(self.parent):
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


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        if os.name == "nt":  # which does not remove what is read-only, as payloads that were placed here are
            for file in path.rglob("*"):
                with contextlib.suppress(OSError):
                    file.chmod(0o644)
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
