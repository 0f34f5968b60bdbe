"""What several processes of one test run use and none changes is made by the first of them, in a folder of the run."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from filelock import FileLock

VARIABLE = "TESTS_MADE_ONCE"
"""Names the folder to the processes that a run of tests starts. Without it, each process has a folder of its own."""


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """The folder for `name`, which `make` filled in this process or another; others wait meanwhile.

    A folder stays where it was made, so what is in it may hold its path. If `make` raises, the next to ask tries again,
    in another folder: what a maker that was killed has started may still write in its own.
    """
    root = _root()
    made, half = root / f"{name}.made", root / f"{name}.half"
    with FileLock(root / f"{name}.lock"):
        if not made.exists():
            folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=root))
            make(folder)
            half.write_text(folder.name, "utf-8")
            half.replace(made)
    return root / made.read_text("utf-8")


@cache
def _root() -> Path:
    if given := os.environ.get(VARIABLE):
        return Path(given)
    folder = Path(tempfile.mkdtemp(prefix="made-once-"))
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # not in a fork
        shutil.rmtree(folder, ignore_errors=True)
