"""Collects mistakes in files, so that a user is told of all of them at once: where, what, and what was expected."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pipeline import plain_text
from pipeline.errors import ConfigError
from pipeline.plain_text import printable

Keys = tuple[str | int, ...]
"""The path of a value in a document: keys of mappings and positions in lists."""


_LONGEST = 2000
_SHOWN = 100
"""How many mistakes are shown; a file with more is hardly a config."""


@dataclass(frozen=True, order=True)
class Place:
    """A position in a file; line and column count from 1."""

    file: str
    line: int = 1
    column: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, order=True)
class Problem:
    """One mistake, as `file:line:column: path.to.key: what; expected ...; did you mean 'x'?`."""

    place: Place
    path: str
    what: str
    expected: str = ""
    suggestion: str = ""

    def __str__(self) -> str:
        said = [self.what]
        if self.expected:
            said.append(f"expected {self.expected}")
        if self.suggestion:
            said.append(f"did you mean '{self.suggestion}'?")
        line = ": ".join(part for part in (str(self.place), self.path, "; ".join(said)) if part)
        line = printable(line, keep="")  # a mistake is one line
        return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


class Problems:
    """The mistakes found so far; iterates in the order of files and lines."""

    def __init__(self) -> None:
        self._items: set[Problem] = set()

    def add(self, place: Place, keys: Keys, what: str, *, expected: str = "", suggestion: str = "") -> None:
        """Note one mistake at `place`, about the value at `keys`."""
        self._items.add(Problem(place, dotted(keys), what, expected, suggestion))

    def refusal(self) -> ConfigError:
        """The error that lists all mistakes."""
        found = list(self)
        count = "one mistake" if len(found) == 1 else f"{len(found)} mistakes"
        shown = [f"  {problem}" for problem in found[:_SHOWN]]
        if len(found) > _SHOWN:
            shown.append(f"  and {len(found) - _SHOWN} more")
        return ConfigError(
            f"{count} in the configuration:\n" + "\n".join(shown),
            remedy="docs/config.md says what may be written",
        )

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Problem]:
        return iter(sorted(self._items))


def dotted(keys: Keys) -> str:
    """`("buckets", 0, "sequence")` as `buckets[0].sequence`."""
    path = ""
    for key in keys:
        if isinstance(key, int):
            path += f"[{key}]"
        elif re.fullmatch(r"[\w-]+", key):
            path += f".{key}" if path else key
        else:
            path += f"[{key!r}]"
    return path


def nearest(word: str, known: Iterable[str]) -> str:
    """The name in `known` that `word` was probably meant to be, or "". Case does not count."""
    by_folded: dict[str, str] = {}
    for name in known:
        by_folded.setdefault(name.casefold(), name)
    return by_folded.get(plain_text.nearest(word.casefold(), by_folded), "")
