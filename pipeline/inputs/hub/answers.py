"""Reads small answers of the hub within bounds of time and size: no server can keep a build waiting for ever."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import httpx2
from huggingface_hub import get_session
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]  # public

LIMIT_S = 60.0
"""Seconds for a whole answer, except a file's content. The client only limits single reads, maybe of one byte each."""

MAX_BYTES = 16 << 20
"""The most bytes of JSON that are read. The hub's description of a repo with ten thousand files has 2 MB."""

_Answer = TypeVar("_Answer")


def within(call: Callable[[], _Answer], limit_s: float | None = None) -> _Answer:
    """Run `call` in a thread; return or raise what it does. Raises ReadTimeout after `limit_s`; the thread goes on."""
    limit_s = LIMIT_S if limit_s is None else limit_s
    answers: list[_Answer] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as error:  # the waiting thread raises it
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit_s)
    if errors:
        raise errors[0]
    if not answers:
        raise httpx2.ReadTimeout(f"no answer within {limit_s:g} s")
    return answers[0]


def get_json(url: str, timeout_s: float, limit_s: float | None) -> Any:
    """The JSON that the hub answers to a GET request with our token.

    Raises:
        httpx2.HTTPError: no answer, or none in time.
        HfHubHTTPError: the hub refuses.
        ValueError: the answer is no JSON, or huge.
    """
    return within(lambda: _read_json(url, timeout_s), limit_s)


def _read_json(url: str, timeout_s: float) -> Any:
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    until = time.monotonic() + LIMIT_S  # nobody waits any more then, and this thread should end
    data = bytearray()
    with get_session().stream("GET", url, headers=headers, timeout=timeout_s) as response:
        hf_raise_for_status(response)
        for block in response.iter_bytes():
            data += block
            if len(data) > MAX_BYTES:
                raise ValueError(f"its answer has more than {MAX_BYTES >> 20} MB")
            if time.monotonic() > until:
                raise httpx2.ReadTimeout("the answer does not end")
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("its answer is nested too deeply") from None
