"""Everything that runs below this process, sampled from Linux's /proc while it runs."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

INTERVAL_S = 0.04
"""How often every process is looked at; one that lives for less may be missed, and its last share of CPU is."""
TREE_INTERVAL_S = 0.1
"""How often the memory of the whole tree is added up, which costs the kernel more."""

_PROC = Path("/proc")

Label = Callable[[str], str]
"""The name of what a process works for, by the file that its standard output goes to; empty for nothing special."""


@dataclass
class Seen:
    """One process as it was last seen; times in seconds since sampling began."""

    pid: int
    first_s: float
    last_s: float = 0.0
    cpu_s: float = 0.0
    peak_bytes: int = 0
    label: str = ""


@dataclass
class Sampler:
    """Samples the descendants of this process that were born since it was started."""

    label: Label
    seen: list[Seen] = field(default_factory=list)
    peak_tree_bytes: int = 0

    def __post_init__(self) -> None:
        self._living: dict[int, Seen] = {}
        self._foreign = set(_pids())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_stopped, daemon=True)
        self._started = 0.0
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")

    def __enter__(self) -> Sampler:
        self._started = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample_until_stopped(self) -> None:
        tree_due = 0.0
        while not self._stop.wait(INTERVAL_S):
            now = time.monotonic() - self._started
            self._look_at_each(now)
            if now >= tree_due:
                tree_due = now + TREE_INTERVAL_S
                self.peak_tree_bytes = max(self.peak_tree_bytes, sum(_shared_out_bytes(pid) for pid in self._living))

    def _look_at_each(self, now: float) -> None:
        running = set(_pids())
        self._living = {pid: seen for pid, seen in self._living.items() if pid in running}
        self._foreign &= running
        # In the order of their numbers, so that parents come before their children as a rule; if not, next time.
        for pid in sorted(running - self._foreign):
            with contextlib.suppress(OSError, ValueError):  # it ended meanwhile
                self._look_at(pid, now)

    def _look_at(self, pid: int, now: float) -> None:
        # The second field is the command in brackets, and may hold anything. proc_pid_stat(5) counts fields from 1.
        fields = (_PROC / str(pid) / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        seen = self._living.get(pid)
        if seen is None:
            parent = int(fields[4 - 3])
            if parent != os.getpid() and parent not in self._living:
                self._foreign.add(pid)
                return
            seen = self._living[pid] = Seen(pid, now)
            self.seen.append(seen)
        seen.last_s = now
        seen.cpu_s = (int(fields[14 - 3]) + int(fields[15 - 3])) / self._ticks_per_s
        seen.peak_bytes = max(seen.peak_bytes, _high_water_bytes(pid))
        seen.label = self.label(str((_PROC / str(pid) / "fd" / "1").readlink())) or seen.label


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir(_PROC) if name.isdigit())  # noqa: PTH208  # forty times a second


def _high_water_bytes(pid: int) -> int:
    """The most that a process had resident since it began its program; 0 for one that has ended."""
    for line in (_PROC / str(pid) / "status").read_text("utf-8", "replace").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0


def _shared_out_bytes(pid: int) -> int:
    """Resident memory in which a page of several processes is shared out among them (PSS), so that it adds up."""
    with contextlib.suppress(OSError):
        for line in (_PROC / str(pid) / "smaps_rollup").read_text("ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return 0
