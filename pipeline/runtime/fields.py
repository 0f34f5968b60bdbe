"""Reads parsed JSON field by field. A value that is not as it should be is an error that names its field."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .errors import FormatError

_SHA256 = re.compile(r"[0-9a-f]{64}")
_NOT_IN_PATHS = re.compile(r"[\x00-\x1f\\:]")  # a backslash or a colon leads elsewhere on Windows
_DEVICE = re.compile(
    r"(?:con|prn|aux|nul|com[0-9\u00b9\u00b2\u00b3]|lpt[0-9\u00b9\u00b2\u00b3])(?:[ .].*)?", re.IGNORECASE
)
"""Names of devices on Windows, in whatever folder: https://learn.microsoft.com/windows/win32/fileio/naming-a-file."""


@dataclass(frozen=True)
class Field:
    """A value of release.json, and its path there, such as `components.encoder.buckets[0]`.

    Methods that read the value as a type raise FormatError if it is of another one.
    """

    value: object
    at: str = ""

    def get(self, name: str) -> Field:
        """A member of an object; a Field with the value None if there is no such member."""
        value = self._mapping().get(name)
        return Field(value, f"{self.at}.{name}" if self.at else name)

    def members(self) -> Iterator[tuple[str, Field]]:
        """The members of an object."""
        for name in self._mapping():
            yield name, self.get(name)

    def items(self) -> Iterator[Field]:
        """The items of a list."""
        if not isinstance(self.value, list):
            raise self.wrong("a list")
        for number, value in enumerate(self.value):
            yield Field(value, f"{self.at}[{number}]")

    def text(self) -> str:
        """A text that is not empty."""
        if not isinstance(self.value, str) or not self.value:
            raise self.wrong("a text")
        return self.value

    def integer(self, least: int, default: int | None = None) -> int:
        """A whole number, `least` or more; `default` if the value is None and a default is given."""
        if self.value is None and default is not None:
            return default
        if not isinstance(self.value, int) or isinstance(self.value, bool) or self.value < least:
            raise self.wrong(f"a whole number from {least} on")
        return self.value

    def sha256(self) -> str:
        """A SHA-256 in hexadecimal."""
        if not isinstance(self.value, str) or not _SHA256.fullmatch(self.value):
            raise self.wrong("a SHA-256")
        return self.value

    def path(self) -> str:
        """A path inside the release."""
        if not is_inside(self.text()):
            raise self.wrong("a path inside the release")
        return self.text()

    def wrong(self, wanted: str) -> FormatError:
        """The error for a value that is not what is `wanted`."""
        given = repr(self.value)
        shown = given if len(given) <= 60 else f"{given[:57]}..."
        return FormatError(
            "release.json is not as a release's should be",
            where=self.at or "release.json",
            why=f"{wanted} is needed here, not {'nothing' if self.value is None else shown}",
            next="get the release again, or a runtime of its version",
        )

    def _mapping(self) -> dict[str, object]:
        if not isinstance(self.value, dict):
            raise self.wrong("an object")
        return self.value


def is_inside(path: str) -> bool:
    """Whether a relative POSIX path stays in the folder that it is joined to, on every platform."""
    parts = path.split("/")
    odd = any(part.rstrip(" .") == "" or _DEVICE.fullmatch(part) for part in parts)
    return not odd and not _NOT_IN_PATHS.search(path)
