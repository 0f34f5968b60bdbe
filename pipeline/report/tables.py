"""Tables, as aligned text for a terminal and as Markdown for a page."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pipeline.plain_text import printable

Table = Sequence[Sequence[str]]
"""A heading and rows of as many cells; empty where there are no rows.

As in a format of Python, `>` before a title aligns the column to the right: `>size`.
"""

MENDED = "mended"
"""Stands in the last column for a forecast that the quantizer has prevented."""


def as_text(table: Table, *, ruled: bool = True) -> str:
    """The table without its empty columns, with a line under the heading if `ruled`; nothing for no rows."""
    titles, rights, rows = _columns(table)
    widths = [max(map(len, cells)) for cells in zip(titles, *rows, strict=True)]
    ruler = [["-" * width for width in widths]] if ruled and rows else []
    lines = [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, rights, strict=True)
        )
        for row in (titles, *ruler, *rows)
    ]
    return "\n".join(line.rstrip() for line in lines) if rows else ""


def as_markdown(table: Table) -> str:
    """The table without its empty columns; nothing for no rows. Its cells are Markdown already."""
    titles, rights, rows = _columns(table)
    ruler = "|".join(" --: " if right else " :-- " for right in rights)
    lines = ["| " + " | ".join(row) + " |" for row in (titles, *rows)]
    return "\n".join([lines[0], f"|{ruler}|", *lines[1:]]) if rows else ""


def _columns(table: Table) -> tuple[list[str], list[bool], list[list[str]]]:
    """The titles of the columns that have text, whether each is aligned to the right, and the rows."""
    heading, *rows = table or [[]]
    kept = [index for index in range(len(heading)) if any(row[index] for row in rows)]
    titles = [heading[index].removeprefix(">") for index in kept]
    rights = [heading[index].startswith(">") for index in kept]
    return titles, rights, [[row[index] for index in kept] for row in rows]


def text(value: str) -> str:
    """Text for Markdown, which no name in it can break or mark up."""
    plain = printable(" ".join(value.split()))
    return re.sub(r"([\\`*_\[\]|~#])", r"\\\1", plain.replace("&", "&amp;").replace("<", "&lt;"))


def code(value: str) -> str:
    """A name, set as code in Markdown."""
    return "`" + printable(value, keep="").replace("`", "'").replace("|", "¦") + "`"
