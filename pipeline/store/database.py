"""Keeps doit's own database in a sealed file, so that damage to the file can't hurt.

What doit remembers there only saves time. In the form that doit writes, a file that was cut short ends every command
with an error, and one flipped bit could make doit skip a task.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.store import cache_file

MEMBER = "tasks"
"""The name under which doit's tasks are in the file."""


def install(json_db: Any) -> None:
    """Make doit's JSON backend, a class that calls `_load` and `dump`, read and write its file this way."""
    json_db._load = lambda self: cache_file.read(Path(self.name), MEMBER)
    json_db.dump = lambda self: cache_file.write(Path(self.name), MEMBER, self._db)
