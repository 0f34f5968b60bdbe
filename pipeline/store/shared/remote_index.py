"""What a shared store is known to have and to have damaged: of this build, and of earlier ones in the build folder."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from pipeline.storage import sealed_json
from pipeline.storage.durable import write_atomically
from pipeline.storage.scratch import Scratch

MEMBER = "places"
"""What the file has."""
_BELIEVED_S = 86400
"""After that it is asked again: a bucket may expire what is old, and others drop what they found damaged."""
_MOST = 50_000  # keys of one place; those noted longest ago are asked about again


class Known:
    """Keys that a place is known to have, so that a build with nothing to do need not ask; and what is damaged there.

    Losing the file costs questions, never correctness. Safe to use from several threads.
    """

    def __init__(self, path: Path, place: str) -> None:
        self._path, self._place = path, place
        self._lock = threading.Lock()
        self._dirty = False
        self._all = _load(path)
        entry = self._all.get(place)
        entry = entry if isinstance(entry, dict) else {}
        keys, bad = entry.get("keys"), entry.get("rewrite")
        self._keys = {key: at for key, at in keys.items() if isinstance(at, int)} if isinstance(keys, dict) else {}
        self._bad = {each for each in bad if isinstance(each, str)} if isinstance(bad, list) else set[str]()
        self._payloads: set[str] = set()
        self._doubtful: dict[str, frozenset[str]] = {}

    def __contains__(self, key: str) -> bool:
        return 0 <= time.time() - self._keys.get(key, -1) < _BELIEVED_S

    def add(self, key: str) -> None:
        """The place has this key, and what it names."""
        with self._lock:
            self._dirty = True
            self._keys[key] = int(time.time())
            self._bad.discard(key)

    def has_payload(self, sha256: str) -> bool:
        """Whether a payload was seen there in this build."""
        return sha256 in self._payloads

    def add_payload(self, sha256: str) -> None:
        """A payload is there, or was written anew."""
        with self._lock:
            self._dirty = self._dirty or sha256 in self._bad
            self._payloads.add(sha256)
            self._bad.discard(sha256)

    def is_bad(self, name: str) -> bool:
        """Whether a key or a payload is damaged there, and to be written anew."""
        return name in self._bad

    def note_bad(self, key: str, payloads: Collection[str]) -> None:
        """A key is damaged there, or payloads of it may be.

        Kept at once: whoever makes them again may not live to write them.
        """
        with self._lock:
            self._keys.pop(key, None)
            self._payloads.difference_update(payloads)
            self._bad.update((key, *payloads))
            self._doubtful[key] = frozenset(payloads)
            self._dirty = True
        self.save()

    def doubtful(self, key: str) -> frozenset[str] | None:
        """The payloads that may be damaged there of a key that was found so in this build; None of another key."""
        return self._doubtful.get(key)

    def save(self) -> None:
        """Write the file if something changed; where it can't be written, the place is asked again next time."""
        with self._lock:
            if not self._dirty:
                return
            keys = dict(sorted(self._keys.items(), key=lambda each: each[1])[-_MOST:])
            self._all[self._place] = {"keys": keys, "rewrite": sorted(self._bad)}
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
