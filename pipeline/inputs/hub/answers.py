"""Small answers of the hub, bounded in time and size: no server can keep a build waiting for ever."""

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
"""For one answer that is no file's content; the client's own limits are for each read, and reads may be of one byte."""

MAX_BYTES = 16 << 20
"""Of JSON. What the hub says of a repo with ten thousand files has 2 MB."""

_Answer = TypeVar("_Answer")


def within(call: Callable[[], _Answer], limit_s: float | None = None) -> _Answer:
    """What `call` returns or raises, but ReadTimeout if that takes longer; it is then left to itself."""
    limit_s = LIMIT_S if limit_s is None else limit_s
    answers: list[_Answer] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as error:  # whatever it is, it is raised where the answer is waited for
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit_s)
    if errors:
        raise errors[0]
    if not answers:
        raise httpx2.ReadTimeout(f"no answer within {limit_s:g} s")
    return answers[0]


def get_json(url: str, timeout_s: float, limit_s: float | None = None) -> Any:
    """The JSON that a GET gives; the token is sent along.

    Raises:
        httpx2.HTTPError: no answer, or none in time; HfHubHTTPError: one that says no.
        ValueError: an answer that is no JSON, or a huge one.
    """
    return within(lambda: _read_json(url, timeout_s), limit_s)


def _read_json(url: str, timeout_s: float) -> Any:
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    until = time.monotonic() + LIMIT_S  # whoever waits for it has given up by then, and the thread should end too
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
