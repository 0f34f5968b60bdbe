"""Names in messages: made safe to print, suggested where one is misspelt, and to be written into a config."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

_NEAR = 32
"""Names that are looked at more closely: SoCs are many, and differ by a digit."""


def printable(text: str, keep: str = "\n\t") -> str:
    r"""`text` with every character that a terminal would obey or not show written out, as ``\x1b`` or ``\u202e``.

    Names come from models and file systems: they may hold escape sequences, marks that reverse the direction of text,
    and halves of characters that can't be encoded. Those in `keep` stay.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else ascii(char)[1:-1] for char in text)


def did_you_mean(name: str, known: Iterable[str], *, rest: str = "") -> str:
    """`; did you mean 'x'?` for the nearest known name, `rest` behind it, or an empty string when none is near.

    Never the name itself: a folder may list a link that leads nowhere.
    """
    near = nearest(name, (other for other in known if other != name))
    return f"; did you mean '{near}{rest}'?" if near else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is nearest to a word by difflib, or "" where none is near.

    One that begins with the word comes first, then one that is a single slip away. Two letters swapped are one slip,
    and the likelier one of several: sm8560 is sm8650 before it is sm8550. Beyond that slips say less than difflib,
    which counts common letters: short words are few slips from the beginning of a long one, and from other short ones.
    """
    near = difflib.get_close_matches(name, list(known), n=_NEAR)
    if begun := [other for other in near if other.startswith(name)]:
        return begun[0]
    slipped = [other for other in near if _slips(name, other) == 1]
    return min(slipped, key=lambda other: sorted(other) != sorted(name), default=near[0] if near else "")


def _slips(word: str, other: str) -> int:
    """Letters to insert, drop or replace, and neighbours to swap, that make one word of another."""
    before: list[int] = []
    last: list[int] = [*range(len(other) + 1)]
    for row, letter in enumerate(word, 1):
        now = [row]
        for column, wanted in enumerate(other, 1):
            slips = min(last[column] + 1, now[column - 1] + 1, last[column - 1] + (letter != wanted))
            if before and column > 1 and word[row - 2] == wanted and letter == other[column - 2]:
                slips = min(slips, before[column - 2] + 1)
            now.append(slips)
        before, last = last, now
    return last[-1]


def cutting(ends: Sequence[str], begins: Sequence[str] = ()) -> str:
    """The advice to end a model at these values, in front of other advice; nothing for none.

    `begins` are values that another component may begin at, behind what is left out.
    """
    if not ends:
        return ""
    apart = f", or in a component of its own for what is behind it, with begin: {quoted(begins)}" if begins else ""
    end = f"end the component before it with cut: {quoted(ends)} in the config"
    return f"{end}, and do the rest in the application{apart}; or "


def quoted(names: Sequence[str]) -> str:
    """Names as a list in a config has them."""
    listed = ", ".join(f"'{name}'" for name in names)
    return f"[{listed}]"
