"""Questions about values whose answers follow from those about other values, in graphs of any depth and width."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

DEEPEST = 50
"""So many values a question is followed through on Python's stack, which two of these may share."""

Answer = TypeVar("Answer")


class _TooDeepError(Exception):
    pass


class Recursive(Generic[Answer]):
    """The answers of `find`, which may ask again for other values; each is kept.

    Where a question leads deeper than :data:`DEEPEST` values, the deepest is answered first and the question asked
    again. So an answer does not depend on what was asked before, and the time grows with the number of values, not
    with that of the ways through the graph. `find` is called again for the values in between, and must not mind.
    """

    def __init__(self, find: Callable[[str], Answer]) -> None:
        self._find = find
        self._known: dict[str, Answer] = {}
        self._depth = 0
        self._first: str | None = None
        """What is to be answered before all else."""

    def __call__(self, name: str) -> Answer:
        """The answer for a value."""
        if name in self._known:
            return self._known[name]
        if self._depth == DEEPEST:
            self._first = name
            raise _TooDeepError
        if self._depth:
            return self._answer(name)
        waiting = [name]
        while waiting:
            try:
                self._answer(waiting[-1])
            except _TooDeepError:
                if self._first is None:
                    raise  # of another question that this one was asked for
                waiting.append(self._first)
                self._first = None
            else:
                waiting.pop()
        return self._known[name]

    def _answer(self, name: str) -> Answer:
        self._depth += 1
        try:
            answer = self._known[name] = self._find(name)
        finally:
            self._depth -= 1
        return answer
