"""What a build is struck with: signals to doit, to its template, to workers and to what those start."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable

import psutil

from tests.support.build_processes import Build, kill, until

INTERRUPTED = 130
GIVE_UP_S = 120.0
Strike = Callable[[Build, random.Random], bool]


def _of(kind: Callable[[Build], list[psutil.Process]]) -> Strike:
    """A strike at one process of a kind, as soon as there is one; False if there was none to the end."""

    def strike(build: Build, chance: random.Random) -> bool:
        found: list[psutil.Process] = []

        def there() -> bool:
            found[:] = kind(build)
            return bool(found)

        return until(there, build, GIVE_UP_S) and kill(chance.choice(found))

    return strike


def _signal(number: signal.Signals) -> Strike:
    def strike(build: Build, _: random.Random) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            build.doit.send_signal(number)
            return True
        return False

    return strike


def _all(build: Build, _: random.Random) -> bool:
    return sum(kill(process) for process in build.alive()) > 0


def _stopped_worker(build: Build, chance: random.Random) -> bool:
    """A worker that can't even be told to end, and then nobody who could tell it."""
    if until(lambda: bool(build.workers()), build, GIVE_UP_S):
        with contextlib.suppress(psutil.NoSuchProcess, IndexError):
            chance.choice(build.workers()).suspend()
    return kill(build.doit)


def _twice(build: Build, chance: random.Random) -> bool:
    """A worker, and doit while it deals with that; or Ctrl-C, and no patience."""
    first = _of(Build.workers) if chance.random() < 0.5 else _signal(signal.SIGINT)
    struck = first(build, chance)
    time.sleep(chance.uniform(0, 0.2))
    kill(build.doit)
    return struck


STRIKES: dict[str, tuple[Strike, tuple[int, ...]]] = {
    "Ctrl-C": (_signal(signal.SIGINT), (INTERRUPTED,)),
    "SIGTERM": (_signal(signal.SIGTERM), (INTERRUPTED,)),
    "SIGKILL of doit": (lambda build, _: kill(build.doit), (-9,)),
    "SIGKILL of the template": (_of(Build.template), (0, 18)),
    "SIGKILL of a worker": (_of(Build.workers), (0, 18)),
    "SIGKILL of a grandchild": (_of(Build.grandchildren), (0, 18)),
    "SIGKILL of all at once": (_all, (-9,)),
    "SIGSTOP of a worker, SIGKILL of doit": (_stopped_worker, (-9,)),
    "two in a row": (_twice, (-9, INTERRUPTED, 18)),
}
"""What is struck, and the exit statuses that doit may then end with."""
GENTLE = ("Ctrl-C", "SIGTERM")
ANY_TIME = (*GENTLE, "SIGKILL of doit", "SIGKILL of all at once")
"""These need no step that runs."""
