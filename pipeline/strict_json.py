"""JSON that all readers understand alike: no name twice in an object, and no NaN if not asked for."""

from __future__ import annotations

import json
from typing import Any


def parse(text: str | bytes, *, non_finite: bool = False) -> Any:
    """What a JSON text says. With `non_finite`, NaN and Infinity are numbers, as Python writes them.

    Raises:
        ValueError: it is no such JSON; the message says where, or why. Also for bytes that are not UTF-8.
        RecursionError: it is nested too deeply.
    """
    whole = text.decode("utf-8") if isinstance(text, bytes) else text
    return json.loads(whole, object_pairs_hook=_unique, parse_constant=None if non_finite else _no_constant)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the key {name[:100]!r} is there twice")
        found[name] = value
    return found


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")
