"""Chooses which waiting step runs next: one a core, within a budget of memory, the longest path first."""

from __future__ import annotations

import bisect
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace


class WithdrawnError(Exception):
    """A step was not started, as no more steps start after another one failed."""


@dataclass(frozen=True, order=True)
class _Place:
    """A place in the queue: whoever has the longest way to go first, then whoever came first."""

    rank: tuple[float, int]
    peak_bytes: int = field(compare=False)


class Schedule:
    """Admits steps. Safe to use from several threads, which wait here."""

    def __init__(self, slots: int, budget_bytes: Callable[[], int]) -> None:
        """`budget_bytes` is called when the first step wants to start: the budget depends on what is free then."""
        self._slots = slots
        self._ask_budget = budget_bytes
        self._budget_bytes: int | None = None
        self._changed = threading.Condition()
        self._waiting: list[_Place] = []
        self._running: list[_Place] = []
        self._numbers = itertools.count()
        self._open = True

    @property
    def slots(self) -> int:
        """How many steps may run at once."""
        return max(1, self._slots)

    def limit(self, slots: int) -> None:
        """How many steps may run at once from now on."""
        with self._changed:
            self._slots = slots
            self._changed.notify_all()

    def close(self) -> None:
        """Start no more steps."""
        with self._changed:
            self._open = False
            self._changed.notify_all()

    @contextmanager
    def admitted(
        self, *, peak_bytes: int, remaining_s: float, wished_bytes: int = 0, patience_s: float = 0.0
    ) -> Iterator[int]:
        """Wait until a step may run that needs `peak_bytes` of memory, and hold its place while it runs.

        Yields the bytes that it may use: `wished_bytes` if the running steps leave that much, else `peak_bytes`. The
        step stays in the queue for `patience_s` even if there is room, to let a more urgent one go first.

        While the first in the queue waits for room, all behind it wait as well. Otherwise small steps could keep a
        large one from ever starting. A step that is larger than the whole budget runs alone.

        Raises:
            WithdrawnError: :meth:`close` was called before the step could start.
        """
        place = _Place((-remaining_s, next(self._numbers)), peak_bytes)
        until = time.monotonic() + patience_s
        with self._changed:
            bisect.insort(self._waiting, place)
            try:
                while self._open and (left := until - time.monotonic()) > 0:
                    self._changed.wait(left)
                self._changed.wait_for(lambda: not self._open or self._is_next(place))
            finally:
                self._waiting.remove(place)
                self._changed.notify_all()
            if not self._open:
                raise WithdrawnError
            if self._used_bytes() + wished_bytes <= (self._budget_bytes or 0):
                place = replace(place, peak_bytes=max(peak_bytes, wished_bytes))
            self._running.append(place)
        try:
            yield place.peak_bytes
        finally:
            with self._changed:
                self._running.remove(place)
                self._changed.notify_all()

    def _is_next(self, place: _Place) -> bool:
        if self._waiting[0] is not place or len(self._running) >= self._slots:
            return False
        if self._budget_bytes is None:
            self._budget_bytes = self._ask_budget()
        return not self._running or self._used_bytes() + place.peak_bytes <= self._budget_bytes

    def _used_bytes(self) -> int:
        return sum(running.peak_bytes for running in self._running)


def remaining_s(seconds: Mapping[str, float], needs: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """For each step the seconds from its start to the end of the longest path that begins with it.

    `needs` names what each step waits for; each step must come after all that it needs.
    """
    remaining = dict(seconds)
    for step in reversed([*needs]):
        for needed in needs[step]:
            if needed in remaining:
                remaining[needed] = max(remaining[needed], seconds[needed] + remaining[step])
    return remaining
