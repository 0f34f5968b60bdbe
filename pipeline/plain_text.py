"""Names in messages: made safe to print, suggested where one is misspelt, and to be written into a config."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def printable(text: str, keep: str = "\n\t") -> str:
    r"""`text` with every character that a terminal would obey or not show written out, as ``\x1b`` or ``\u202e``.

    Names come from models and file systems: they may hold escape sequences, marks that reverse the direction of text,
    and halves of characters that can't be encoded. Those in `keep` stay.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else ascii(char)[1:-1] for char in text)


def did_you_mean(name: str, known: Iterable[str], *, rest: str = "") -> str:
    """`; did you mean 'x'?` for the nearest known name, `rest` behind it, or an empty string when none is near."""
    near = nearest(name, known)
    return f"; did you mean '{near}{rest}'?" if near else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """The nearest known name, or an empty string when none is near."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), "")


def cutting(ends: Sequence[str]) -> str:
    """The advice to end a model at these values, in front of other advice; nothing for none."""
    if not ends:
        return ""
    names = ", ".join(f"'{name}'" for name in ends)
    return f"end the component before it with cut: [{names}] in the config, and do the rest in the application; or "
