"""Bounds the time that calls to a place may take: each runs in its own thread, and is given up when nothing is heard.

A thread can't be ended. The thread of a call that was given up goes on until the process ends, and nobody waits for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from pipeline.processes import stopping
from pipeline.store.shared.place import Moved, StoppedError

SILENT_S = 8.0
"""How many seconds of silence end a small question."""
_UNSURE_S = 4.0
"""How many seconds of silence there may be while files move before a small question is asked, and until its answer."""
_STALLED_S = 600.0
"""How many seconds a call may make no progress while small questions are answered. It is long because a part of 8 MB
counts only when all of it was sent, and several parts may share a slow line."""
_AWAKE_S = 0.2
_ABSENT_S = 2.0
"""A loop that wakes up so many seconds late was stopped itself, as by Ctrl-Z: the silence then does not count."""
_Answer = TypeVar("_Answer")


class GoneError(Exception):
    """The place does not answer: this call, or an earlier one, was given up."""


class Patience:
    """Calls one place, and gives it up when it is silent. `probe` asks a small question. Safe for several threads."""

    def __init__(self, probe: Callable[[], object] = lambda: None) -> None:
        self.gone = ""
        """Why the place was given up; "" while it is in use."""
        self._probe = probe
        self._changed = threading.Condition()
        self._heard = time.monotonic()
        self._probing = False

    def give_up(self, why: str) -> bool:
        """End all calls now, and let none begin. False if the place was given up before."""
        with self._changed:
            first = not self.gone
            if first:
                self.gone = why
            self._changed.notify_all()
        return first

    def ask(self, act: Callable[[], _Answer]) -> _Answer:
        """What `act`, a call that moves little data, returns.

        Raises:
            GoneError: it does not return in time.
            Exception: what it raises.
        """
        return self._wait(_Call(self, lambda _: act()), SILENT_S, probing=False)

    def move(self, act: Callable[[Moved], _Answer], during: Callable[[int], None] = lambda _: None) -> _Answer:
        """As :meth:`ask` for a transfer of any length; `during` is called now and then with the bytes moved so far."""
        return self._wait(_Call(self, act), _UNSURE_S, probing=True, during=during)

    def heard(self) -> None:
        """Note a sign of life. Raises StoppedError when nobody waits for the call any more."""
        self._heard = time.monotonic()
        if self.gone or stopping.asked():
            raise StoppedError

    def _wait(
        self,
        call: _Call[_Answer],
        silent_s: float,
        *,
        probing: bool,
        during: Callable[[int], None] = lambda _: None,
    ) -> _Answer:
        call.start()
        looked = time.monotonic()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: call.is_over or bool(self.gone), _AWAKE_S)
                if call.is_over:
                    break
            stopping.check()
            if self.gone:
                raise GoneError(self.gone)
            during(call.moved)
            now = time.monotonic()
            if now - looked > _ABSENT_S:
                self._heard = call.last = now
            looked = now
            if now - call.last > _STALLED_S:
                self._give_up_silent(_STALLED_S)
            if now - max(self._heard, call.began) > silent_s:
                if probing:
                    self._ask_whether_alive()
                else:
                    self._give_up_silent(silent_s)
        if isinstance(call.error, StoppedError):
            stopping.check()
            raise GoneError(self.gone)
        if call.error is not None:
            raise call.error
        return call.answer

    def over(self, call: _Call[_Answer]) -> None:
        """Note that a call has ended. Called by its thread."""
        with self._changed:
            self._heard = time.monotonic()
            call.is_over = True
            self._changed.notify_all()

    def _give_up_silent(self, silent_s: float) -> None:
        self.give_up(f"it does not answer: nothing was heard for {silent_s:.0f} s")
        raise GoneError(self.gone)

    def _ask_whether_alive(self) -> None:
        """Ask a small question unless one is open, and give the place up if no answer comes. An error is an answer."""
        with self._changed:
            if self._probing:
                return
            self._probing = True
        try:
            self._wait(_Call(self, lambda _: self._probe()), _UNSURE_S, probing=False)
        except GoneError:
            raise
        except Exception:  # also an answer
            return
        finally:
            self._probing = False


class _Call(Generic[_Answer]):
    """A call in its own thread, and its result."""

    answer: _Answer

    def __init__(self, patience: Patience, act: Callable[[Moved], _Answer]) -> None:
        self._patience, self._act = patience, act
        self.began = self.last = time.monotonic()
        self.moved = 0
        self.is_over = False
        self.error: Exception | None = None

    def start(self) -> None:
        # No pool: at its end the interpreter would wait for the pool's threads.
        threading.Thread(target=self._run, name="shared store", daemon=True).start()

    def _run(self) -> None:
        try:
            self.answer = self._act(self._note)
        except Exception as error:
            self.error = error
        except BaseException as error:  # a KeyboardInterrupt of ours: we are stopping
            self.error = StoppedError()
            self.error.__cause__ = error
        finally:
            self._patience.over(self)

    def _note(self, count: int) -> None:
        self.moved += count
        self.last = time.monotonic()
        self._patience.heard()
