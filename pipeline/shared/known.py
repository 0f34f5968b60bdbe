"""What a shared store is known to have, so that a build with nothing to do need not ask: a file in the build folder."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipeline.storage import sealed_json
from pipeline.storage.durable import write_atomically
from pipeline.storage.scratch import Scratch

MEMBER = "places"
"""What the file has."""
_MOST = 50_000  # keys of one place; those noted longest ago are asked about again


class Known:
    """Keys that a place is known to have, and what of it is to be written anew, being damaged there.

    Losing the file costs questions, never correctness. Safe to use from several threads.
    """

    def __init__(self, path: Path, place: str) -> None:
        self._path, self._place = path, place
        self._lock = threading.Lock()
        self._dirty = False
        self._all = _load(path)
        entry = self._all.get(place)
        entry = entry if isinstance(entry, dict) else {}
        self._keys = dict.fromkeys(_texts(entry.get("keys")))
        self._bad = set(_texts(entry.get("rewrite")))

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def add(self, key: str) -> None:
        """The place has this key, and what it names."""
        with self._lock:
            self._dirty = self._dirty or key not in self._keys or key in self._bad
            self._keys[key] = None
            self._bad.discard(key)

    def is_bad(self, name: str) -> bool:
        """Whether a key or a payload is damaged there."""
        return name in self._bad

    def note_bad(self, names: Iterable[str]) -> None:
        """Keys and payloads are damaged there; kept at once, as whoever makes them again may not live to write them."""
        with self._lock:
            for name in names:
                self._keys.pop(name, None)
                self._bad.add(name)
            self._dirty = True
        self.save()

    def note_good(self, name: str) -> None:
        """It was written anew."""
        with self._lock:
            self._dirty = self._dirty or name in self._bad
            self._bad.discard(name)

    def save(self) -> None:
        """Write the file if something changed; where it can't be written, the place is asked again next time."""
        with self._lock:
            if not self._dirty:
                return
            self._all[self._place] = {"keys": [*self._keys][-_MOST:], "rewrite": sorted(self._bad)}
            data = sealed_json.dump({MEMBER: self._all})
            self._dirty = False
        with contextlib.suppress(OSError), Scratch(self._path.parent / "tmp").folder() as folder:
            write_atomically(self._path, data, durable=False, folder=folder)


def _load(path: Path) -> dict[str, Any]:
    try:
        found = sealed_json.load_member(path.read_bytes(), MEMBER)
    except (OSError, ValueError):
        return {}
    return dict(found) if isinstance(found, dict) else {}


def _texts(found: object) -> list[str]:
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []
