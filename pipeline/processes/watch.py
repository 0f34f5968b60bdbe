"""Watches the time and memory of steps, and ends the processes of a step that exceeds its limits."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil

from pipeline.frozen import dataclass

_EVERY_S = 0.5
_OFTEN_S = 0.05  # once a step uses half of its memory limit, as memory can grow by gigabytes a second
_GAP_S = 5.0  # the most that one look adds to a step's time: more means that we were stopped ourselves (Ctrl-Z)


@dataclass(frozen=True)
class Allowance:
    """The limits of a step: seconds of wall time, and bytes of memory of all its processes together."""

    seconds: float
    bytes: int


@dataclass(frozen=True)
class Excess:
    """What a step had used when it was ended for its memory or for its time."""

    allowed: Allowance
    seconds: float
    bytes: int

    @property
    def for_memory(self) -> bool:
        """Whether it was ended for its memory."""
        return self.bytes > self.allowed.bytes


class Watched:
    """One watched step: its worker and all descendants of that."""

    def __init__(self, allowance: Allowance) -> None:
        self.allowance = allowance
        self.excess: Excess | None = None
        """Set when the step is ended; None before."""
        self.seconds = 0.0
        self.members: dict[int, psutil.Process] = {}

    def bytes(self) -> int:
        """Resident memory of all members. If that exceeds the limit, shared pages are counted once.

        A worker shares pages with the process that it was forked from. Counting them once makes the system walk over
        the page tables, which is too slow to do at every look.
        """
        resident = self._sum(_resident)
        if resident <= self.allowance.bytes:
            return resident
        shared = self._sum(_share)
        # What a process shares counts twice if it forks after it was read and before its child is.
        return shared if shared <= self.allowance.bytes else min(shared, self._sum(_share))

    def kill(self) -> None:
        """Kill each member, even if it has left the worker's group."""
        for process in [*self.members.values()]:
            with contextlib.suppress(psutil.Error):
                process.kill()

    def _sum(self, measure: Callable[[psutil.Process], int]) -> int:
        total = 0
        for process in [*self.members.values()]:
            with contextlib.suppress(psutil.Error, OSError):  # it has ended, or we may open no more files
                total += measure(process)
        return total


class Watch:
    """Looks at running workers twice a second, in a thread that lives as long as any worker runs."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._watched: dict[int, tuple[Watched, Callable[[int], None]]] = {}
        self._seen: set[int] = set()
        self._workers: set[int] = set()
        self._thread: threading.Thread | None = None

    @contextmanager
    def over(self, worker: int, watched: Watched, end: Callable[[int], None]) -> Iterator[None]:
        """Watch a worker, given by its process id; call `end` with the id if the step exceeds a limit.

        The end of the block kills descendants of the worker that still run.
        """
        with contextlib.suppress(psutil.Error):
            watched.members[worker] = psutil.Process(worker)
        with self._changed:
            self._watched[worker] = (watched, end)
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="watch", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._changed:
                del self._watched[worker]
                self._changed.notify()
            watched.members.pop(worker, None)  # its starter ends it, and reads its status
            watched.kill()

    def _look(self) -> None:
        try:
            self._look_on()
        except BaseException:  # a bug, which is printed; a new thread watches the next worker
            with self._changed:
                self._thread = None
            raise

    def _look_on(self) -> None:
        before = time.monotonic()
        wait_s = _EVERY_S
        while True:
            with self._changed:
                if not self._watched:
                    self._thread = None
                    return
                self._changed.wait(wait_s)
                watched = dict(self._watched)
            now = time.monotonic()
            passed_s, before = min(now - before, _GAP_S), now
            with contextlib.suppress(psutil.Error, OSError):  # we may open no more files now; look again later
                self._find_members({worker: each for worker, (each, _) in watched.items()})
            wait_s = _EVERY_S
            for worker, (each, end) in watched.items():
                each.seconds += passed_s
                used = each.bytes()
                if used > each.allowance.bytes or each.seconds > each.allowance.seconds:
                    if each.excess is None:
                        each.excess = Excess(each.allowance, each.seconds, used)
                    end(worker)
                    each.kill()
                elif used > each.allowance.bytes / 2:
                    wait_s = _OFTEN_S

    def _find_members(self, watched: dict[int, Watched]) -> None:
        """Make members of new processes by their parents. A member that loses its parent later stays one."""
        running = set(psutil.pids())
        for each in watched.values():
            for gone in {*each.members} - running:
                each.members.pop(gone, None)  # the end of the block may have removed it
        if watched.keys() - self._workers:  # a new worker may have started children before we knew it
            self._seen = set()
        self._workers = set(watched)
        new = {pid: kin for pid in running - self._seen if (kin := _parent_and_group(pid))}
        self._seen = running
        owners = {pid: each for each in watched.values() for pid in [*each.members]}
        found = True
        while found:  # a child may come before its parent
            found = False
            for pid, (parent, group) in [*new.items()]:
                owner = owners.get(parent) or watched.get(group)
                if owner is None:
                    continue
                del new[pid]
                with contextlib.suppress(psutil.Error):
                    if pid not in owner.members:
                        owner.members[pid] = psutil.Process(pid)
                        owners[pid] = owner
                        found = True


def _parent_and_group(pid: int) -> tuple[int, int] | None:
    """The numbers of a process's parent and of its group, 0 where there is none; None for what has ended.

    A look may be at hundreds of processes, few of which are ours: on Linux one small file says both.
    """
    if sys.platform != "linux":
        with contextlib.suppress(psutil.Error):
            return int(psutil.Process(pid).ppid()), _group(pid)
        return None
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            fields = stream.read().rpartition(b")")[2].split(None, 3)  # what is in brackets is any text
    except OSError:
        return None
    return int(fields[1]), int(fields[2])


def _group(pid: int) -> int:
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            return os.getpgid(pid)
    return 0


def _resident(process: psutil.Process) -> int:
    return int(process.memory_info().rss)


def _share(process: psutil.Process) -> int:
    """Resident memory with shared pages divided among their users (PSS), or without shared pages (USS)."""
    try:
        found = process.memory_full_info()
    except psutil.AccessDenied:
        return _resident(process)
    return int(getattr(found, "pss", found.uss))
