"""Records which outputs a shared store has and which are damaged there, over builds, in a file of the build folder."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from pathlib import Path

from pipeline.model import Manifest
from pipeline.store import cache_file
from pipeline.store.manifests import parse_manifest
from pipeline.store.shared.connection import Reach
from pipeline.store.shared.names import PLACES

_BELIEVED_S = 86400
"""An older note is checked again: a bucket may expire old files, and others drop what they found damaged."""
_MOST = 400_000  # keys noted of one place; the oldest notes are dropped


class Known:
    """The keys that a place has, so that a build with nothing to do need not ask it, and the keys damaged there.

    If the file is lost, the place is asked again. Several threads may use it.
    """

    def __init__(self, path: Path, reach: Reach) -> None:
        self._path, self._reach = path, reach
        self._lock = threading.Lock()
        self._dirty = False
        self._all = cache_file.read(path, PLACES)
        entry = self._all.get(reach.name)
        entry = entry if isinstance(entry, dict) else {}
        keys, bad = entry.get("keys"), entry.get("rewrite")
        self._keys = {key: at for key, at in keys.items() if isinstance(at, int)} if isinstance(keys, dict) else {}
        self._bad = {each for each in bad if isinstance(each, str)} if isinstance(bad, list) else set[str]()
        self._payloads: set[str] = set()
        self._doubtful: dict[str, frozenset[str]] = {}

    def __contains__(self, key: str) -> bool:
        return 0 <= time.time() - self._keys.get(key, -1) < _BELIEVED_S

    @property
    def owes(self) -> bool:
        """Whether anything is known to be damaged there."""
        return bool(self._bad)

    def add(self, key: str) -> None:
        """Note that the place has this key and all payloads of it."""
        with self._lock:
            self._dirty = True
            self._keys[key] = int(time.time())
            self._bad.discard(key)

    def has_payload(self, sha256: str) -> bool:
        """Whether a payload was seen there in this build."""
        return sha256 in self._payloads

    def add_payload(self, sha256: str) -> None:
        """Note that the place has a good copy of a payload."""
        with self._lock:
            self._dirty = self._dirty or sha256 in self._bad
            self._payloads.add(sha256)
            self._bad.discard(sha256)

    def is_bad(self, name: str) -> bool:
        """Whether a key or a payload is damaged there, so that it must be written again."""
        return name in self._bad

    def checked(self, key: str, stage: str, data: bytes) -> Manifest | None:
        """The manifest in the bytes that the place has under a key; None, and noted, if they are damaged."""
        manifest = parse_manifest(data)
        if manifest is not None and (manifest.key, manifest.stage) == (key, stage):
            return manifest
        self.note_damage(key, (), f"what it knows of a step ({stage})", "it is not what was written")
        return None

    def note_damage(self, key: str, payloads: Collection[str], what: str, fault: str) -> None:
        """Note that an output is damaged there, and tell so once. `payloads` are those not seen to be good."""
        self.note_bad(key, payloads)
        again = "it is not used, and written anew when it was made again"
        self._reach.tell_once(f"damaged {key}", f"damaged in the shared store: {what}: {fault}; {again}")

    def note_bad(self, key: str, payloads: Collection[str]) -> None:
        """Note that a key is damaged there, and perhaps these payloads of it.

        The note is saved at once: a build may make the output again, and be killed before it writes it there.
        """
        with self._lock:
            self._keys.pop(key, None)
            self._payloads.difference_update(payloads)
            self._bad.update((key, *payloads))
            self._doubtful[key] = frozenset(payloads)
            self._dirty = True
        self.save()

    def doubtful(self, key: str) -> frozenset[str] | None:
        """The payloads that may be damaged there, of a key that this build found damaged; None for another key."""
        return self._doubtful.get(key)

    def save(self) -> None:
        """Write the file if something changed. If it can't be written, the next build asks the place again."""
        with self._lock:
            if not self._dirty:
                return
            keys = dict(sorted(self._keys.items(), key=lambda each: each[1])[-_MOST:])
            self._all[self._reach.name] = {"keys": keys, "rewrite": sorted(self._bad)}
            content = {**self._all}
            self._dirty = False
        cache_file.write(self._path, PLACES, content)
