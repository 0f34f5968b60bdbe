"""doit's own database, made such that nothing that happens to its file can hurt: sealed, whole or not there.

What doit remembers in it only saves time. As doit leaves it, a file that was cut short ends every command with an
error, and one flipped bit could have it skip a task.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from pipeline.storage import sealed_json
from pipeline.storage.durable import write_atomically
from pipeline.storage.scratch import Scratch

MEMBER = "tasks"
"""What the file has."""


def read(path: Path) -> dict[str, Any]:
    """What doit remembers, by task; nothing if the file is missing or damaged."""
    try:
        tasks: dict[str, Any] = sealed_json.load_member(path.read_bytes(), MEMBER)
    except (OSError, ValueError):
        return {}
    return tasks


def write(path: Path, tasks: dict[str, Any]) -> None:
    """Keep it, if the disk lets us."""
    with contextlib.suppress(OSError), Scratch(path.parent / "tmp").folder() as folder:
        write_atomically(path, sealed_json.dump({MEMBER: tasks}, indent=None), durable=False, folder=folder)


def install(json_db: Any) -> None:
    """Have doit's JSON backend, a class that calls `_load` and `dump`, read and write its file this way."""
    json_db._load = lambda self: read(Path(self.name))
    json_db.dump = lambda self: write(Path(self.name), self._db)
