"""JSON objects whose first line is the SHA-256 of all bytes after it: one flipped bit, and the file counts for nothing.

    {"sha256": "<64 hex digits>",
     "name": ...}

Any JSON reader can read it. A file that was cut, mixed with another or edited by hand is refused.
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
    """The object as bytes that depend on nothing but its content; it must not be empty, nor have a key `sha256`."""
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
    """One member of the object; UnsealedError if it has none, being another file of ours."""
    content = load(data)
    if name not in content:
        raise UnsealedError
    return content[name]
