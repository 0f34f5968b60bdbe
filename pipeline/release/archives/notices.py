"""Finds licences and notices of the compiler in its installed package, for releases, which distribute its output.

Its terms (`Qualcomm_LICENSE.pdf`, 2b and 10h) forbid removing or altering them, so releases carry them unchanged.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping
from pathlib import Path

from pipeline.errors import WorkerError

PACKAGE, _FOLDER = "onnxruntime-qnn", "onnxruntime_qnn"
_NAME = re.compile(r".*(?:licen[cs]e|notice).*", re.IGNORECASE)
_VENDOR = "qualcomm"


def notices() -> Mapping[str, Path]:
    """The files, by name. Raises WorkerError if the package lacks them."""
    try:
        files = importlib.metadata.distribution(PACKAGE).files or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    named = [file for file in files if file.parent.as_posix() == _FOLDER and _NAME.fullmatch(file.name)]
    found = {file.name: path for file in named if (path := Path(str(file.locate()))).is_file()}
    if not any(_VENDOR in name.lower() for name in found):
        raise WorkerError(
            f"the installed {PACKAGE} has no licence of its vendor, which a release must carry",
            why=f"it has {', '.join(sorted(found)) or 'no such file'}",
            remedy=f"reinstall it: uv sync --reinstall-package {PACKAGE}",
        )
    return dict(sorted(found.items()))
