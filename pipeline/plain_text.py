"""Text that is safe to print, whatever names it carries."""

from __future__ import annotations


def printable(text: str, keep: str = "\n\t") -> str:
    r"""`text` with every character that a terminal would obey or not show written out, as ``\x1b`` or ``\u202e``.

    Names come from models and file systems: they may hold escape sequences, marks that reverse the direction of text,
    and halves of characters that can't be encoded. Those in `keep` stay.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else ascii(char)[1:-1] for char in text)
