"""Finds the files of a calibration set that is a folder, and refuses sets that need a package which is missing."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from pipeline.errors import CalibrationError


def found_files(folder: Path, suffixes: Collection[str], what: str) -> list[Path]:
    """The files below a folder with one of these suffixes, in the order of their paths, the same on every system.

    Raises:
        CalibrationError: it is no folder, or has no such file. `what` is the word for one in the error: `picture`.
    """
    if not folder.is_dir():
        raise CalibrationError(
            f"{folder.name} is not a folder", remedy=f"name the folder that holds the {what}s, in calibration.folder"
        )
    paths = [path for path in folder.rglob("*") if path.suffix.lower() in suffixes and path.is_file()]
    if not paths:
        kinds = ", ".join(sorted(suffixes))
        raise CalibrationError(
            f"the calibration set is empty: {folder.name} holds no {what}",
            where=folder.name,
            why=f"files are taken whose names end in {kinds}; its folders were looked through, too",
            remedy=f"put 16 to 64 {what}s there that are typical of the model's use",
        )
    return sorted(paths, key=lambda path: path.relative_to(folder).as_posix())


def needs_extra(extra: str, package: str) -> CalibrationError:
    """The error for a package that is not installed; `extra` is the extra of this project that brings it."""
    return CalibrationError(
        f"the package {package} is not installed in this Python environment",
        why=f"the samples of this model are read with it, and it comes with the extra '{extra}' alone",
        remedy=f"run 'uv sync --inexact --extra {extra}', then the same command again",
    )
