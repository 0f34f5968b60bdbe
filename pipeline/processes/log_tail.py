"""Reads the end of a log of any size and content, as native code writes them."""

from __future__ import annotations

import re
from pathlib import Path

from pipeline.plain_text import printable

_BYTES = 32 << 10
_WIDTH = 300
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def log_tail(path: Path, lines: int) -> list[str]:
    """The last lines of a log that are not blank, safe to print, at most 300 characters each; none without a log.

    Reads no more than the last 32 kB of the log.
    """
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, 2) - _BYTES))
            text = stream.read(_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    return [_shown(line) for line in text.splitlines() if line.strip()][-lines:]


def _shown(line: str) -> str:
    shown = printable(_COLOUR.sub("", line[: 2 * _WIDTH]))  # escapes make a line longer, never shorter
    return shown if len(shown) <= _WIDTH else f"{shown[: _WIDTH - 1]}…"
