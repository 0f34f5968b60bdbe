"""What can go wrong with the local hub's answers, as a test asks for it, and what the hub was asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Fault:
    """Something that goes wrong with requests for files whose name matches, the first `times` times or always."""

    name: str = "*"
    method: str = "GET"
    times: int | None = 1
    status: int | None = None
    """Answer with this HTTP status, `message` and `headers`."""
    message: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    """Close the connection after so many bytes of the body, `pause_s` later."""
    pause_s: float = 0.0
    wrong_byte: bool = False
    """Send another byte in place of the first."""
    ignore_range: bool = False
    """Answer a range request with the whole file."""
    claim: Mapping[str, str] = field(default_factory=dict)
    """Headers that replace those of the right answer."""
    bytes_per_s: float | None = None
    drip: bool = False
    """Send single bytes, each of them `pause_s` after the last."""
    redirect: str | None = None
    """Send elsewhere; `{url}` is this very address."""
    page: bytes | None = None
    """Answer with this page of HTML, as a login page does, with status 200."""
    bomb_bytes: int | None = None
    """Send so many zeros, compressed, whatever encoding was asked for."""
    endless_head: bool = False
    """Send the answer's headers a byte at a time, `pause_s` after each other, without an end."""


@dataclass(frozen=True)
class Request:
    """One request as the server saw it; `host` is "hub" or "storage"."""

    host: str
    method: str
    path: str
    name: str
    """The file that was asked for, or empty."""
    range: str
    token: str
