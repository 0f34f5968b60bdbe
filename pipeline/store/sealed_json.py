"""JSON objects whose first line is the SHA-256 of all bytes after it, so that one flipped bit is noticed.

    {"sha256": "<64 hex digits>",
     "name": ...}

Any JSON reader can read such a file. We refuse one that was cut short, mixed with another, or edited by hand.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pipeline.model import Json

_HEAD = b'{"sha256": "'
_TAIL = b'",\n'
_START = len(_HEAD) + 64 + len(_TAIL)


class UnsealedError(ValueError):
    """Bytes that are not what :func:`dump` wrote."""


def dump(content: Mapping[str, Json], *, indent: int | None = 1, sort_keys: bool = True) -> bytes:
    """The object as sealed bytes. It must not be empty, nor have a key `sha256`."""
    text = json.dumps(content, indent=indent, sort_keys=sort_keys, ensure_ascii=False)
    body = text[1:].lstrip("\n").encode("utf-8", "surrogatepass") + b"\n"
    return _HEAD + hashlib.sha256(body).hexdigest().encode() + _TAIL + body


def load(data: bytes) -> dict[str, Any]:
    """The object in bytes that :func:`dump` made; raises UnsealedError for any others."""
    body = data[_START:]
    if data[:_START] != _HEAD + hashlib.sha256(body).hexdigest().encode() + _TAIL:
        raise UnsealedError
    try:
        content: dict[str, Any] = json.loads("{" + body.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        raise UnsealedError from None
    return content


def load_member(data: bytes, name: str) -> Any:
    """One member of the object. Raises UnsealedError as :func:`load`, and if there is no such member."""
    content = load(data)
    if name not in content:
        raise UnsealedError
    return content[name]
