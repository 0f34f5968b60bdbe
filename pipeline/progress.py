"""How far a running step is: told by its worker in a line of a small file, and shown by the build that waits for it."""

from __future__ import annotations

import contextlib
import contextvars
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

VARIABLE = "PIPELINE_PROGRESS"
"""The environment variable that names the file; without it nothing is told."""

_LONGEST = 200
_outside: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("outside", default=())
_T = TypeVar("_T")


@contextlib.contextmanager
def within(what: str) -> Iterator[None]:
    """Tell this, and put it before all that is told inside: `bucket 64, node 12 of 480`."""
    before = _outside.set((*_outside.get(), what))
    try:
        tell("")
        yield
    finally:
        _outside.reset(before)


def counted(items: Iterable[_T], what: str, of: int | None = None) -> Iterator[_T]:
    """The items, telling before each which it is: `sample 7 of 30`. `of` is how many there are, if that is known.

    Telling takes some microseconds: any of them may be the one that takes minutes.
    """
    with _Line(os.environ.get(VARIABLE)) as line:
        for number, item in enumerate(items, 1):
            line.write(f"{what} {number} of {of}" if of else f"{what} {number}")
            yield item


def tell(text: str) -> None:
    """Tell how far the step is, in a few words."""
    with _Line(os.environ.get(VARIABLE)) as line:
        line.write(text)


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


class _Line:
    """The file, kept open: each text takes the place of the one before. No step fails for want of a line about it."""

    def __init__(self, file: str | None) -> None:
        self._stream = None
        if file:
            with contextlib.suppress(OSError):
                self._stream = os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT, 0o666), "wb", buffering=0)

    def __enter__(self) -> _Line:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()

    def write(self, text: str) -> None:
        if self._stream is None:
            return
        text = ", ".join(filter(None, (*_outside.get(), text)))[:_LONGEST]
        with contextlib.suppress(OSError):
            self._stream.seek(0)
            self._stream.write(text.encode("utf-8", "replace").ljust(4 * _LONGEST))  # over what was there before
