"""A thread for native code that must find its heap as in every process: what it is told, and what it keeps of that."""

from __future__ import annotations

import signal
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipeline.processes.quiet_thread import QuietThread


class _Given:
    pass


def test_a_call_answers_or_raises_always_in_one_thread() -> None:
    thread = QuietThread()
    first = thread.run(threading.get_ident)
    with pytest.raises(ValueError, match="invalid literal"):
        thread.run(int, "none")
    assert thread.run(threading.get_ident) == first != threading.get_ident()
    assert thread.run(int, "12", base=8) == 10


def test_nothing_of_a_call_is_kept() -> None:
    thread, given = QuietThread(), _Given()
    answer = thread.run(lambda each: [each, _Given()], given)
    kept = [weakref.ref(given), weakref.ref(answer[1])]
    del given, answer
    assert [each() for each in kept] == [None, None]


def test_callers_take_turns() -> None:
    thread = QuietThread()
    with ThreadPoolExecutor(8) as callers:
        assert list(callers.map(lambda number: thread.run(pow, number, 2), range(200))) == [n * n for n in range(200)]


@pytest.mark.skipif(sys.platform == "win32", reason="a lock that is waited for is not interrupted there")
def test_a_call_that_is_interrupted_is_left_alone() -> None:
    thread, begun = QuietThread(), threading.Event()

    def interrupt() -> None:
        begun.wait()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def lasts() -> str:
        begun.set()
        time.sleep(1)
        return "too late"

    other = threading.Thread(target=interrupt)
    other.start()
    with pytest.raises(KeyboardInterrupt):
        thread.run(lasts)
    other.join()
    assert [thread.run(str, number) for number in range(3)] == ["0", "1", "2"]
