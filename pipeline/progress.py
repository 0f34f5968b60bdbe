"""How far a running step is: told by its worker in a line of a small file, and shown by the build that waits for it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

VARIABLE = "PIPELINE_PROGRESS"
"""The environment variable that names the file; without it nothing is told."""

_APART_S = 0.5
_LONGEST = 200
_T = TypeVar("_T")


def counted(items: Iterable[_T], what: str, of: int | None = None) -> Iterator[_T]:
    """The items, telling before each which it is: `sample 7 of 30`. `of` is how many there are, if that is known."""
    file, last_s = os.environ.get(VARIABLE), -_APART_S
    for number, item in enumerate(items, 1):
        if file and time.monotonic() - last_s >= _APART_S:
            last_s = time.monotonic()
            _tell(file, f"{what} {number} of {of}" if of else f"{what} {number}")
        yield item


def tell(text: str) -> None:
    """Tell how far the step is, in a few words. For what happens a few times a second at most."""
    if file := os.environ.get(VARIABLE):
        _tell(file, text)


def file_of(log: Path) -> Path:
    """The file for a step whose output goes to `log`."""
    return log.with_name(f"{log.name}.now")


def told(file: Path) -> str:
    """What was told last; empty if nothing was."""
    try:
        text = file.read_text("utf-8", "replace")
    except OSError:
        return ""
    return " ".join(text.split())[:_LONGEST]


def _tell(file: str, text: str) -> None:
    with contextlib.suppress(OSError):  # no step fails for want of a line about it
        Path(file).write_text(text, "utf-8")
