"""Reads and writes manifests, each with a digest over itself: in the store by key, in a checkout by step."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from pipeline.model import PARTS, FileEntry, Json, Manifest
from pipeline.store import sealed_json
from pipeline.store.durable import UNRELATED, write_atomically
from pipeline.store.files_read import note_file

SCHEMA = 2
_SHA256 = re.compile(r"[0-9a-f]{64}")


def read_manifest(path: Path) -> Manifest | None:
    """The manifest in a file; None if the file is missing, unreadable or damaged.

    Raises OSError for an error that is no fault of the file: no memory, or too many open files.
    """
    note_file(path)
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            return None
        return _parsed(str(path), status.st_size, status.st_mtime_ns, status.st_ino)
    except OSError as error:
        if error.errno in UNRELATED:
            raise
        return None


@lru_cache(maxsize=1 << 14)  # every step that needs a manifest reads it, and so does the report
def _parsed(path: str, *_: int) -> Manifest | None:
    with open(path, "rb") as stream:
        return parse_manifest(stream.read())


def parse_manifest(data: bytes) -> Manifest | None:
    """The manifest in bytes that :func:`dump_manifest` made; None for any others."""
    try:
        raw = sealed_json.load(data)
        if raw["schema"] != SCHEMA:
            return None
        files = {name: FileEntry(entry["sha256"], entry["bytes"]) for name, entry in raw["files"].items()}
        _check_files(files, raw["facts"].get(PARTS, {}))
        return Manifest(raw["stage"], raw["key"], files, raw["facts"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _check_files(files: Mapping[str, FileEntry], parts: Mapping[str, Mapping[str, Mapping[str, str]]]) -> None:
    """Raise ValueError or TypeError for entries that we would not write, such as names that lead out of a folder.

    Another machine may have written the manifest to a shared store.
    """
    named = [name for part in parts.values() for name in part["files"]]
    if not all(isinstance(part["facts"], dict) for part in parts.values()):
        raise TypeError("a part has no facts")
    if not all(_is_inside(name) for name in (*files, *named)):
        raise ValueError("a name leads out of the folder")
    if not all(_SHA256.fullmatch(entry.sha256) and type(entry.bytes) is int for entry in files.values()):
        raise ValueError("a file has no digest or size")
    if not all(entry.bytes >= 0 for entry in files.values()):
        raise ValueError("a file has less than no bytes")
    if not all(file in files for part in parts.values() for file in part["files"].values()):
        raise ValueError("a part has a file that is none of the step's")


def _is_inside(name: str) -> bool:
    return not (set(name.split("/")) & {"", ".", ".."} or set(name) & set("\\:\0"))


def write_manifest(path: Path, manifest: Manifest, *, durable: bool = True, folder: Path | None = None) -> None:
    """Write a manifest atomically, as :func:`dump_manifest` has it.

    `folder` is where it is written before it is moved, as for :func:`durable.write_atomically`.
    """
    write_atomically(path, dump_manifest(manifest), durable=durable, folder=folder)


def dump_manifest(manifest: Manifest) -> bytes:
    """A manifest as readable JSON; equal manifests give equal bytes."""
    files: dict[str, Json] = {
        name: {"sha256": entry.sha256, "bytes": entry.bytes} for name, entry in manifest.files.items()
    }
    raw: dict[str, Json] = {
        "schema": SCHEMA,
        "stage": manifest.stage,
        "key": manifest.key,
        "files": files,
        "facts": dict(manifest.facts),
    }
    return sealed_json.dump(raw)
