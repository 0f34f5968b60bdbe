"""Questions about values whose answers follow from those about other values, in graphs of any depth and width."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

DEEPEST = 100
"""So many values a question is followed through: more than any pattern has, and within Python's stack."""

Answer = TypeVar("Answer")


class Recursive(Generic[Answer]):
    """Asks `find` once for each value; what lies beyond :data:`DEEPEST` values counts as `beyond`.

    `find(name)` may ask again for other values. Without it, values that are used twice, again and again, would be
    asked for a number of times that doubles with each.
    """

    def __init__(self, find: Callable[[str], Answer], beyond: Answer) -> None:
        self._find = find
        self._beyond = beyond
        self._known: dict[str, Answer] = {}
        self._depth = 0

    def __call__(self, name: str) -> Answer:
        """The answer for a value."""
        if name not in self._known:
            if self._depth == DEEPEST:
                return self._beyond
            self._depth += 1
            try:
                self._known[name] = self._find(name)
            finally:
                self._depth -= 1
        return self._known[name]
