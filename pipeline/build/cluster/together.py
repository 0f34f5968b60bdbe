"""Combines requests that many threads make at the same time into one call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

Asked = TypeVar("Asked")
Got = TypeVar("Got")


class Together(Generic[Asked, Got]):
    """Calls a function once for all threads that wait for it. Safe to use from several threads.

    A thread calls at once if no other thread is in a call. Threads that come meanwhile wait for that call to end; then
    the first of them makes one call for all. So no thread waits for others to come, and many threads need few calls.
    """

    def __init__(self, call: Callable[[Sequence[Asked]], Sequence[Got | Exception]]) -> None:
        """`call` takes requests and returns, in their order, a result for each or an exception to raise for it."""
        self._function = call
        self._adding, self._calling = threading.Lock(), threading.Lock()
        self._waiting: list[tuple[Asked, Future[Got]]] = []

    def __call__(self, asked: Asked) -> Got:
        """The result of one request. Raises the exception of this request, or one that the whole call raised."""
        mine: Future[Got] = Future()
        with self._adding:
            self._waiting.append((asked, mine))
        with self._calling:
            if not mine.done():
                self._call()
        return mine.result()

    def _call(self) -> None:
        with self._adding:
            waiting, self._waiting = self._waiting, []
        try:
            results = self._function([asked for asked, _ in waiting])
        except BaseException as error:  # an interrupt as well: who waits has no other to wait for
            for _, future in waiting:
                future.set_exception(error)
        else:
            for (_, future), got in zip(waiting, results, strict=True):
                if isinstance(got, Exception):
                    future.set_exception(got)
                else:
                    future.set_result(got)
