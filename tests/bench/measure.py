"""Runs a command and measures it with everything that it starts: time, CPU, memory, and which step used what."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.processes import Label, Sampler, Seen

_SET_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
_AFTERLIFE_S = 10.0


@dataclass(frozen=True)
class Span:
    """What the processes of one step used, by samples; times since the command started."""

    label: str
    start_s: float
    end_s: float
    cpu_s: float
    peak_bytes: int


@dataclass(frozen=True)
class Usage:
    """What a command used.

    `cpu_s` is user and system time of all processes, from the kernel's own account of those that ended;
    `peak_process_bytes` the largest high-water mark of any one process; `peak_tree_bytes` that of all at one moment, a
    shared page counted once, sampled every :data:`tests.bench.processes.TREE_INTERVAL_S`.
    """

    wall_s: float
    cpu_s: float
    peak_process_bytes: int
    peak_tree_bytes: int
    spans: tuple[Span, ...] = ()


class CommandFailedError(Exception):
    """A measured command ended with another status than 0. Its log is part of the text."""


def run(
    command: Sequence[str | Path],
    *,
    cwd: Path,
    log: Path,
    env: Mapping[str, str] | None = None,
    label: Label = lambda _: "",
) -> Usage:
    """Run a command to its end with its output in `log`. Processes that it leaves behind are waited for, and count.

    Raises:
        CommandFailedError: its exit status is not 0.
    """
    _adopt_orphans()
    log.parent.mkdir(parents=True, exist_ok=True)
    with Sampler(label) as sampler, log.open("wb") as stream:
        started = time.perf_counter()
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=cwd,
            env=None if env is None else dict(env),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _, status, used = os.wait4(process.pid, 0)
            wall_s = time.perf_counter() - started
            process.returncode = os.waitstatus_to_exitcode(status)
            cpu_s = used.ru_utime + used.ru_stime + _wait_for_orphans(sampler.seen)
        except BaseException:
            _kill(process.pid, *(seen.pid for seen in sampler.seen))
            raise
    if process.returncode:
        tail = "\n".join(log.read_text("utf-8", "replace").splitlines()[-30:])
        raise CommandFailedError(f"exit status {process.returncode} of {' '.join(map(str, command))}\n{tail}")
    # A new process begins with the high-water mark of the one that started it, until it has a larger one of its own.
    counted = used.ru_maxrss if used.ru_maxrss > resource.getrusage(resource.RUSAGE_SELF).ru_maxrss else 0
    peak = max([counted << 10, *(seen.peak_bytes for seen in sampler.seen)])
    return Usage(wall_s, cpu_s, peak, max(sampler.peak_tree_bytes, 0), _spans(sampler.seen))


def added(usages: Iterable[Usage]) -> Usage:
    """Commands that ran one after the other, as one."""
    parts = list(usages)
    return Usage(
        sum(part.wall_s for part in parts),
        sum(part.cpu_s for part in parts),
        max(part.peak_process_bytes for part in parts),
        max(part.peak_tree_bytes for part in parts),
    )


def folder_bytes(*folders: Path, suffixes: Sequence[str] = ()) -> int:
    """Bytes of all files in the folders, of those with a suffix if any are given; a file of many names counts once."""
    sizes: dict[tuple[int, int], int] = {}
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink() and (not suffixes or path.suffix in suffixes):
                status = path.stat()
                sizes[status.st_dev, status.st_ino] = status.st_size
    return sum(sizes.values())


def _spans(seen: Iterable[Seen]) -> tuple[Span, ...]:
    by_label: dict[str, list[Seen]] = {}
    for each in seen:
        by_label.setdefault(each.label, []).append(each)
    return tuple(
        Span(
            label,
            round(min(each.first_s for each in group), 3),
            round(max(each.last_s for each in group), 3),
            round(sum(each.cpu_s for each in group), 3),
            max(each.peak_bytes for each in group),
        )
        for label, group in by_label.items()
    )


def _adopt_orphans() -> None:
    """Become the parent of every descendant whose parent ends before it, so that it can be waited for."""
    ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _wait_for_orphans(seen: Iterable[Seen]) -> float:
    """Wait for processes that outlived the command; the CPU seconds they used. Ends those that stay."""
    cpu_s = 0.0
    deadline = time.monotonic() + _AFTERLIFE_S
    for pid in [each.pid for each in seen]:
        while True:
            try:
                found, _, used = os.wait4(pid, os.WNOHANG)
            except ChildProcessError:  # its own parent has waited for it
                break
            if found:
                cpu_s += used.ru_utime + used.ru_stime
                break
            if time.monotonic() > deadline:
                _kill(pid)
            time.sleep(0.01)
    return cpu_s


def _kill(*pids: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
