"""Waiting for a place that may never answer: each call runs in a thread of its own, and is given up when all is silent.

A thread can't be ended. One whose call was given up waits on, for as long as the process lives, and is not waited for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from pipeline.shared.place import Moved, StoppedError
from pipeline.system import stopping

SILENT_S = 8.0
"""For how long nothing at all may be heard while a small question is open."""
_UNSURE_S = 4.0
"""For how long nothing may be heard while files move, before a small question is asked; as long for its answer."""
_STALLED_S = 600.0
"""For how long one call may make no progress while small questions are answered: a part of 8 MB, of several that are
sent at once on a slow line, counts when all of it was sent."""
_AWAKE_S = 0.2
_ABSENT_S = 2.0
"""Who looks again so much later than he meant to was stopped himself, as by Ctrl-Z: the place is not to blame."""
_Answer = TypeVar("_Answer")


class GoneError(Exception):
    """The place does not answer any more: this call, or another one, was given up."""


class Patience:
    """How long is waited for one place. `probe` asks it a small question. Safe to use from several threads."""

    def __init__(self, probe: Callable[[], object] = lambda: None) -> None:
        self.gone = ""
        """Why nothing is asked any more; empty while it is."""
        self._probe = probe
        self._changed = threading.Condition()
        self._heard = time.monotonic()
        self._probing = False

    def give_up(self, why: str) -> bool:
        """Have all calls end now, and none begin; False if somebody was first."""
        with self._changed:
            first = not self.gone
            if first:
                self.gone = why
            self._changed.notify_all()
        return first

    def ask(self, act: Callable[[], _Answer]) -> _Answer:
        """What a small question comes to.

        Raises:
            GoneError: there is no answer.
            Exception: the answer.
        """
        return self._wait(_Call(self, lambda _: act()), SILENT_S, probing=False)

    def move(self, act: Callable[[Moved], _Answer], during: Callable[[int], None] = lambda _: None) -> _Answer:
        """As :meth:`ask`, of what takes as long as it takes: `during` is called now and then with the bytes moved."""
        return self._wait(_Call(self, act), _UNSURE_S, probing=True, during=during)

    def heard(self) -> None:
        """Note a sign of life; raises StoppedError when none is wanted."""
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
        """Called by a call's thread at its end."""
        with self._changed:
            self._heard = time.monotonic()
            call.is_over = True
            self._changed.notify_all()

    def _give_up_silent(self, silent_s: float) -> None:
        self.give_up(f"it does not answer: nothing was heard for {silent_s:.0f} s")
        raise GoneError(self.gone)

    def _ask_whether_alive(self) -> None:
        """Ask a small question, unless somebody is at it; gives up if there is no answer to it, whichever."""
        with self._changed:
            if self._probing:
                return
            self._probing = True
        try:
            self._wait(_Call(self, lambda _: self._probe()), _UNSURE_S, probing=False)
        except GoneError:
            raise
        except Exception:  # an answer all the same
            return
        finally:
            self._probing = False


class _Call(Generic[_Answer]):
    """A call in a thread of its own, and what it came to."""

    answer: _Answer

    def __init__(self, patience: Patience, act: Callable[[Moved], _Answer]) -> None:
        self._patience, self._act = patience, act
        self.began = self.last = time.monotonic()
        self.moved = 0
        self.is_over = False
        self.error: Exception | None = None

    def start(self) -> None:
        # Not of a pool: the interpreter would wait for its threads at the end.
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
