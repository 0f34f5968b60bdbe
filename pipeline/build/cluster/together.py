"""What many threads ask for at the same time, asked for in one go."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

Asked = TypeVar("Asked")
Got = TypeVar("Got")


class Together(Generic[Asked, Got]):
    """Calls a function once for all threads that wait for it. Safe to use from several threads.

    A thread that finds no other in a call makes one at once. Those that come meanwhile wait, and the first of them
    makes one call for them all. So no thread waits for company, and the more there are, the fewer calls they cost.
    """

    def __init__(self, call: Callable[[Sequence[Asked]], Sequence[Got | Exception]]) -> None:
        """`call` gives for each that it is given, in their order, a result or the exception to raise to who asked."""
        self._function = call
        self._adding, self._calling = threading.Lock(), threading.Lock()
        self._waiting: list[tuple[Asked, Future[Got]]] = []

    def __call__(self, asked: Asked) -> Got:
        """The result for one. Raises its exception, and what a call raises to all whom it was made for."""
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
