"""Slices of an output as a config writes them, such as `":, 4:"`: read strictly, and checked against a shape."""

from __future__ import annotations

import re
from collections.abc import Sequence

Part = int | slice
"""The selection of one dim."""

PATTERN = r"[0-9:,.\-\s]{1,100}"
"""The characters that the text of a slice may hold; :func:`parse_slice` says whether it is one."""

_INDEX = re.compile(r"-?\d{1,9}")
_RANGE = re.compile(r"(-?\d{1,9})?\s*:\s*(-?\d{1,9})?(?:\s*:\s*([1-9]\d{0,8}))?")
_REST = "..."


def parse_slice(text: str) -> tuple[Part | None, ...]:
    """An entry a dim, as numpy understands them: `4`, `:`, `1:`, `:-2`, `::2`; None stands for `...`.

    >>> parse_slice(":, 4:")
    (slice(None, None, None), slice(4, None, None))

    Raises:
        ValueError: it is something else, or has `...` twice.
    """
    parts: list[Part | None] = []
    for entry in (piece.strip() for piece in text.split(",")):
        if entry == _REST:
            parts.append(None)
        elif _INDEX.fullmatch(entry):
            parts.append(int(entry))
        elif found := _RANGE.fullmatch(entry):
            parts.append(slice(*(int(number) if number else None for number in found.groups())))
        else:
            raise ValueError(f"{entry!r} is no index or range; write a slice as numpy does, such as ':, 4:'")
    if parts.count(None) > 1:
        raise ValueError("'...' may stand there once")
    return tuple(parts)


def parts_of(text: str, shape: Sequence[int]) -> tuple[Part, ...]:
    """The selection of each dim of an array of this shape.

    Raises:
        ValueError: it has more entries than the shape has dims, or takes nothing of one.
    """
    given = parse_slice(text)
    named = sum(part is not None for part in given)
    if named > len(shape):
        raise ValueError(f"slice {text!r} has {named} entries, the output {len(shape)} dims: {list(shape)}")
    at = given.index(None) if None in given else len(given)
    whole = [slice(None)] * (len(shape) - named)
    parts = [*(part for part in given[:at] if part is not None), *whole]
    parts += [part for part in given[at + 1 :] if part is not None]
    for place, (part, size) in enumerate(zip(parts, shape, strict=True)):
        inside = -size <= part < size if isinstance(part, int) else len(range(*part.indices(size))) > 0
        if not inside:
            raise ValueError(f"slice {text!r} takes nothing of dim {place}, which has {size} entries: {list(shape)}")
    return tuple(parts)


def spelled(parts: Sequence[Part]) -> str:
    """Parts as text that :func:`parse_slice` reads."""
    return ", ".join(str(part) if isinstance(part, int) else _spelled(part) for part in parts)


def _spelled(part: slice) -> str:
    start, stop = ("" if end is None else str(end) for end in (part.start, part.stop))
    return f"{start}:{stop}" + (f":{part.step}" if part.step is not None else "")
