"""The names of the files in `configs/`, for code that does not read the files."""

from __future__ import annotations

from pathlib import Path

PINS_FILE = "pins.yaml"
"""Which commit each branch or tag was pinned to."""
PROJECT_FILE = "project.yaml"
"""Settings of the project."""
RESERVED = frozenset({PINS_FILE, PROJECT_FILE})
"""Files of `configs/` that are no models."""


def model_names(folder: Path) -> list[str]:
    """The models that have a file in `folder`, in the order in which they are built; none if it can't be read."""
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError:
        return []
    return [name[:-5] for name in names if name.endswith(".yaml") and name[0] != "." and name not in RESERVED]
