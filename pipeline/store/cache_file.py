"""Files that only save time: one JSON object, sealed, under one name. Losing such a file loses nothing but time."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.model import Json
from pipeline.store import sealed_json
from pipeline.store.durable import write_atomically
from pipeline.store.scratch import Scratch


def read(path: Path, member: str) -> dict[str, Any]:
    """The object that :func:`write` put under `member`; empty if the file is missing, damaged or another of ours."""
    try:
        found = sealed_json.load_member(path.read_bytes(), member)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write(path: Path, member: str, content: Mapping[str, Json]) -> None:
    """Replace the file atomically; does nothing if the disk can't be written."""
    with contextlib.suppress(OSError), Scratch(path.parent / "tmp").folder() as folder:
        data = sealed_json.dump({member: {**content}}, indent=None, sort_keys=False)
        write_atomically(path, data, durable=False, folder=folder)
