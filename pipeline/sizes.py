"""Amounts of bytes as people read and write them: the one definition of their units."""

from __future__ import annotations

import re

# Of SI, and with an i those of IEC 80000-13.
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def parse_size(text: str) -> int | None:
    """Bytes of `12G`, `800 MB` (of 1000) or `64KiB` (of 1024), None if the text is no such thing."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", text.strip(), re.IGNORECASE)
    if match is None or (match[3] and not match[2]):
        return None
    return int(float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[match[2].upper()])


def human_bytes(count: int) -> str:
    """A size in decimal units, e.g. `36.2 MB`."""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
