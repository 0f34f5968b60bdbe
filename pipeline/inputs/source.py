"""Finds the files of a model in its source, and refuses names that lead out of it."""

from __future__ import annotations

import mmap
import re
import unicodedata
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path, PurePosixPath

from pipeline.errors import ModelError, SourceError
from pipeline.inputs.safetensors.index import files_of, is_safetensors
from pipeline.model import Json
from pipeline.plain_text import did_you_mean
from pipeline.store.digests import StatMemo

_IR_VERSION = b"\x08"  # the tag of the first field of onnx.ModelProto, with which serializers begin
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_LISTED = 10_000
# https://learn.microsoft.com/windows/win32/fileio/naming-a-file
_RESERVED = re.compile(
    r"(?:con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(?:\..*)?|.*[. ]|.*[<>\"|?*\x00-\x1f].*", re.I | re.S
)


def local_files(folder: Path, names: Sequence[str], memo: StatMemo | None = None) -> dict[str, Path]:
    """The named files of a model folder and the files that these need, by relative POSIX name.

    With a `memo`, an ONNX file is read only if it changed.

    Raises:
        SourceError: the folder or a file is missing, is a link that leads out of the folder, or a Git LFS pointer.
        ModelError: an ONNX file is damaged, or names external data outside its folder.
    """
    if not folder.is_dir():
        files = ", ".join(names[:4]) or "its files"
        raise SourceError(
            f"the model folder {folder.name} does not exist",
            where=str(folder),
            remedy=f"put {files} there, or correct source.path; it is relative to the config file",
        )
    return with_external_data(names, lambda name, named_by: _inside(folder, name, named_by), memo)


def with_external_data(
    names: Sequence[str], obtain: Callable[[str, str], Path], memo: StatMemo | None = None
) -> dict[str, Path]:
    """The named files of a source and the files that these need, by relative POSIX name.

    ONNX files need their external data, safetensors the files beside them. `obtain(name, named_by)` returns where a
    file is; `named_by` is the file that needs it, or "".

    Raises:
        SourceError: a name leads out of the source, or is not one that a file can have on every system.
        ModelError: as for :func:`external_names`.
    """
    found: dict[str, Path] = {}
    spelt: dict[str, str] = {}
    for name in names:
        _check_name(_relative(name), "", spelt)
        found[name] = obtain(name, "")
        for side in sides_of(name, found[name], memo):
            if side not in found:
                _check_name(side, name, spelt)
                found[side] = obtain(side, name)
    return found


def _check_name(name: str, named_by: str, spelt: dict[str, str]) -> None:
    """Refuse a name that Windows can't store, or would take for another one; `spelt` has the names so far."""
    where = f"named by {named_by}" if named_by else ""
    if any(_RESERVED.fullmatch(part) for part in name.split("/")):
        raise SourceError(
            f"{name!r} can't be the name of a file on Windows",
            where=where,
            why="it has a reserved name, a character that is not allowed, or a dot or space at its end",
            remedy="take a local copy of the model, rename the file, and give the copy as source.path",
        )
    other = spelt.setdefault(unicodedata.normalize("NFC", name).casefold(), name)
    if other != name:
        raise SourceError(
            f"two files of the source have names that are one on many systems: {other!r} and {name!r}",
            where=where,
            why="Windows and macOS don't tell upper case from lower, and one would take the place of the other",
            remedy="take a local copy of the model, rename one of them, and give the copy as source.path",
        )


def is_onnx(name: str) -> bool:
    """Whether a file is taken for an ONNX model, by its name."""
    return name.lower().endswith(".onnx")


def sides_of(name: str, path: Path, memo: StatMemo | None = None) -> list[str]:
    """The names in the source of the files that `name`, which is at `path`, needs.

    Raises:
        ModelError: the file is damaged, or names files outside its folder.
    """
    if is_onnx(name):
        return external_names(name, path, memo)
    return files_of(name, path) if is_safetensors(name) else []


def external_names(name: str, path: Path, memo: StatMemo | None = None) -> list[str]:
    """The names in the source of the external data that the ONNX file `name`, which is at `path`, refers to.

    Raises:
        ModelError: the file is no ONNX, or a location is empty, absolute, or has `..` or a backslash.
    """
    locations = memo.value(path, "external data", _locations) if memo else _locations(path)
    assert isinstance(locations, list)
    return [_beside(name, str(location)) for location in locations]


def _locations(path: Path) -> Json:
    if not _mentions_external_data(path):
        return []
    from pipeline.graph.files.external_data import locations  # imports onnx: only for files that changed

    return [*locations(path)]


def _mentions_external_data(path: Path) -> bool:
    """Whether an ONNX file must be parsed: it contains the key under which tensors name a file, or starts oddly."""
    with path.open("rb") as stream:
        if stream.read(1) != _IR_VERSION:
            return True
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return data.find(b"location") >= 0


def _is_inside(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return bool(parts) and not (name.startswith("/") or ".." in parts or any(c in name for c in "\\:\0"))


def _beside(onnx_name: str, location: str) -> str:
    if not _is_inside(location):
        raise ModelError(
            f"{onnx_name} names external data outside its folder: {location!r}",
            why="external data must lie beside the ONNX file or below it",
            remedy="save the model again with its external data beside it",
        )
    return (PurePosixPath(onnx_name).parent / location).as_posix()


def _relative(name: str) -> str:
    plain = PurePosixPath(name).as_posix()
    if not _is_inside(name) or plain != name:
        raise SourceError(
            f"{name!r} is no name of a file in the source",
            why="files are named relative to the source's root, with forward slashes and without '..'",
            remedy=f"write {plain}" if _is_inside(name) else "correct the name in the config",
        )
    return name


def _inside(folder: Path, name: str, named_by: str) -> Path:
    path = folder / name
    where = f"{folder}, named by {named_by}" if named_by else str(folder)
    try:
        resolved, is_file, exists = path.resolve(), path.is_file(), path.exists()
    except (OSError, RuntimeError) as error:  # a name that is too long, links in a circle
        raise SourceError(
            f"{name} can't be looked up in the model folder",
            where=where,
            why=str(error),
            remedy="put the file itself there, under a shorter name",
        ) from error
    if not resolved.is_relative_to(folder.resolve()):
        raise SourceError(
            f"{name} is a link that leads out of the model folder",
            where=where,
            why=f"it points to {resolved}",
            remedy="put the file itself into the folder; for a folder of the HF cache give source.hub instead of path",
        )
    if exists and not is_file:
        raise SourceError(
            f"{name} is {'a folder' if path.is_dir() else 'a device, a pipe or a socket'}, not a file",
            where=where,
            remedy="put the file itself there, or correct its name in the config",
        )
    if not is_file:
        files = (file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
        kind = "external data" if is_onnx(named_by) else "file"
        raise SourceError(
            f"the model folder has no {kind} {name}{did_you_mean(name, islice(files, _LISTED))}",
            where=where,
            remedy="put the file there, or correct its name in the config",
        )
    with path.open("rb") as stream:
        if stream.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise SourceError(
                f"{name} is a Git LFS pointer, not the file itself",
                where=where,
                why="the folder was cloned without Git LFS",
                remedy="run 'git lfs pull' in it",
            )
    return path
