"""Finds what `doit init` guessed and nobody has checked: lines of a config with a comment that says GUESS."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

GUESS = "GUESS"
"""The word that marks a guess. A user removes it after checking the line."""
_SAID = re.compile(rf"#.*\b{GUESS}\b[:,]")
_KEY = re.compile(r"""\s*(?P<key>'(?:[^']|'')*'|"[^"]*"|[^\s#:'"][^:#]*?)\s*:(?:\s|$)""")
_NAMED = 8


def guesses(config: Path) -> list[str]:
    """The keys whose values are guessed, in the order of the file; none if it can't be read."""
    try:
        lines = config.read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return []
    found: list[str] = []
    above = False
    for line in lines:
        said = _SAID.search(line) is not None
        if line.lstrip().startswith("#"):
            above = above or said
            continue
        key = _KEY.match(line)
        if key is not None and (said or above):
            found.append(key["key"].strip("'\""))
        above = False
    return found


def still_guessed(name: str, found: Sequence[str]) -> str:
    """The message about the guesses in the config `name`."""
    keys = ", ".join(found[:_NAMED]) + (f" and {len(found) - _NAMED} more" if len(found) > _NAMED else "")
    return (
        f"configs/{name} has guesses in it: {keys}. What was measured holds for samples prepared like that: compare"
        f" with the application, and take the word {GUESS} out of lines that are right."
    )
