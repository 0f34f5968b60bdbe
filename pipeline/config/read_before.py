"""Configurations that were read before: a file that has not changed is not parsed and checked again.

Kept is only what had no mistake, under a digest of the file's path and bytes and of the code that read it.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import io
import os
import pickle
import sys
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.store import cache_file

MEMBER = "configs"
"""The name in the file under which the configurations are."""
_PACKAGE = Path(__file__).resolve().parents[1]
_ROOMS = ("", "config", "config/yaml", "contracts", "qnn")
"""Folders of the code that decides what a file means."""


class ReadBefore:
    """What was read in earlier runs, in one file of the build folder. Losing it loses nothing but time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = cache_file.read(path, MEMBER)
        self._used: dict[str, str] = {}

    def find(self, path: Path, data: bytes) -> object:
        """What `path` meant when it had these bytes; None if that is not known."""
        name = _name(path, data)
        kept = self._known.get(name)
        if not isinstance(kept, str):
            return None
        try:
            found: object = _Unpickler(io.BytesIO(base64.b64decode(kept))).load()
        except Exception:  # whatever a file of another version makes of itself, it is read anew
            return None
        self._used[name] = kept
        return found

    def keep(self, path: Path, data: bytes, meaning: object) -> None:
        """Note what `path` means with these bytes."""
        self._used[_name(path, data)] = base64.b64encode(pickle.dumps(meaning, 5)).decode("ascii")

    def save(self) -> None:
        """Write what was found and kept, if that is not what the file has already."""
        if self._used.keys() != self._known.keys():
            cache_file.write(self._path, MEMBER, {**self._used})


class _Unpickler(pickle.Unpickler):
    """Makes paths and dataclasses of ours, and nothing else: the file may be anybody's."""

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name) if module.split(".")[0] in ("pathlib", "pipeline") else None
        if isinstance(found, type) and (dataclasses.is_dataclass(found) or issubclass(found, Path)):
            return found
        raise pickle.UnpicklingError(f"{module}.{name} is no part of a configuration")


def _name(path: Path, data: bytes) -> str:
    return hashlib.sha256(b"\0".join((_code(), os.fsencode(os.path.abspath(path)), data))).hexdigest()


@cache
def _code() -> bytes:
    """The Python that runs, and the stat of each file of code: as good as what Python itself goes by."""
    found = []
    for room in _ROOMS:
        with os.scandir(_PACKAGE / room) as entries:
            files = sorted((entry for entry in entries if entry.name.endswith(".py")), key=lambda entry: entry.name)
        found += [(room, file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return repr((sys.version_info, _PACKAGE, found)).encode()
