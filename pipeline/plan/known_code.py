"""Keeps what counts of our own modules beside their bytecode, so that a build in an empty folder parses none of them.

An entry is found by a module's name, the digest of its bytes, and the digest of :mod:`pipeline.plan.counted_code`. The
file is sealed. Losing it costs time only. Where Python is told to write no bytecode, it is not written either.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import sys
import threading
from functools import cache
from pathlib import Path

from pipeline.model import Json
from pipeline.plan import counted_code
from pipeline.store import cache_file, sealed_json
from pipeline.store.durable import write_atomically

_MEMBER = "modules"
_PREFIX = "counted-"
_ROOT = Path(__file__).resolve().parents[2]


class KnownCode:
    """What counts of modules of this package, as JSON of :class:`counted_code.CountedCode`. Threads may share it."""

    def __init__(self, folder: Path | None) -> None:
        """Read what is known in `folder`. With None, nothing is known and nothing is saved."""
        self._path = folder and folder / f"{_PREFIX}{_rules()}.json"
        self._entries: dict[str, Json] = cache_file.read(self._path, _MEMBER) if self._path else {}
        self._grew = False
        self._lock = threading.Lock()

    def counted(self, path: Path) -> Json:
        """What counts of a module, by its bytes; raises OSError."""
        source = path.read_bytes()
        name, digest = path.relative_to(_ROOT).as_posix(), hashlib.sha256(source).hexdigest()
        with self._lock:
            known = self._entries.get(name)
        match known:
            case [str(noted), dict(code)] if noted == digest:
                return code
        found = counted_code.counted_code(source, own=True).to_json()
        with self._lock:
            self._entries[name] = [digest, found]
            self._grew = True
        return found

    def save(self) -> None:
        """Write down what was found since, in place of what other rules found, unless no bytecode is to be written."""
        with self._lock:
            if not self._grew or self._path is None or sys.dont_write_bytecode:
                return
            self._grew = False
            content = {name: entry for name, entry in self._entries.items() if (_ROOT / name).is_file()}
        with contextlib.suppress(OSError):  # as with bytecode, that of others may not be ours to write
            data = sealed_json.dump({_MEMBER: content}, indent=None, sort_keys=False)
            write_atomically(self._path, data, durable=False)
            for path in self._path.parent.glob(f"{_PREFIX}*.json"):
                if path != self._path:
                    path.unlink()


@cache
def beside_bytecode() -> KnownCode:
    """What is known where Python keeps the bytecode of this package."""
    try:
        return KnownCode(Path(importlib.util.cache_from_source(__file__)).parent)
    except (NotImplementedError, OSError):  # this Python keeps none, or our own source can't be read
        return KnownCode(None)


def _rules() -> str:
    own = hashlib.sha256(Path(counted_code.__file__).read_bytes()).hexdigest()
    return f"{counted_code.RULES}-{own[:16]}"
