"""Measures memory in bytes: of this machine, of what a build may use, and of the peak of this process."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from pipeline.errors import ConfigError
from pipeline.sizes import parse_size

VARIABLE = "PIPELINE_MEMORY"
STEP_VARIABLE = "PIPELINE_STEP_MEMORY"
"""In the environment of a worker: the bytes that its build counts for the step, of its limit at most."""
_SHARE = 0.8  # of the free memory; the rest is for the build itself, the page cache and estimates that are too low
_OOM_SCORE = 500  # of 1000: counts as if the process used half of all memory in addition (proc_pid_oom_score_adj(5))
_CGROUPS = Path("/sys/fs/cgroup")
# (limit, use) of control groups, version 2 and 1 (https://docs.kernel.org/admin-guide/cgroup-v2.html)
_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
_at_once = [1]
"""How many of its largest children this process ran at once."""


def given_bytes(environ: Mapping[str, str]) -> int | None:
    """What all running steps together may use by PIPELINE_MEMORY (`12G`, `800M`); None if it is not set.

    Raises:
        ConfigError: the variable is no size.
    """
    if VARIABLE not in environ:
        return None
    text = environ[VARIABLE].strip()
    size = parse_size(text)
    if not size:
        raise ConfigError(
            f"{VARIABLE}={text} is not an amount of memory",
            where="environment",
            why="" if text else "it is set, and blank",
            remedy=f"write a number of bytes, or one with K, M or G, such as {VARIABLE}=12G, or unset it",
        )
    return size


def budget_bytes(environ: Mapping[str, str]) -> int:
    """What all running steps together may use: by PIPELINE_MEMORY, else 80 % of the free memory.

    Raises:
        ConfigError: the variable is no size.
    """
    if given := given_bytes(environ):
        return given
    import psutil  # 60 ms that a build with nothing to do need not pay

    available = int(psutil.virtual_memory().available)
    left = [limit - used for limit, used in _cgroup_limits()]
    return int(max(min([available, *left]), 1) * _SHARE)


def granted_bytes(environ: Mapping[str, str]) -> int:
    """What this process and its children may use as a step of a build; 0 where no build counts for it."""
    return int(environ.get(STEP_VARIABLE, "0"))


def total_bytes() -> int:
    """The memory of this machine, or of its container if that has less."""
    import psutil

    return min([int(psutil.virtual_memory().total), *(limit for limit, _ in _cgroup_limits())])


def go_first() -> None:
    """Make Linux end this process and its children, not the build, when memory runs out."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(f"{_OOM_SCORE}\n", "ascii")


def oom_kills() -> int | None:
    """How many processes Linux has ended for lack of memory since it started; None on other systems."""
    try:
        words = Path("/proc/vmstat").read_text("ascii").split()
        return int(words[words.index("oom_kill") + 1])
    except (OSError, ValueError):
        return None


def run_at_once(count: int) -> None:
    """Say that this process runs so many of its largest children at once, for :func:`peak_bytes`."""
    _at_once[0] = max(_at_once[0], count)


def peak_bytes() -> int:
    """The peak of resident memory of this process, plus that of the largest of its children that ended.

    That counts as often as such children ran at once, by :func:`run_at_once`. Linux counts a child as at least as large
    as its parent was at the start of the child, so this may be too high. Windows reports no children.
    """
    if sys.platform == "win32":
        import psutil

        peak = int(psutil.Process().memory_info().peak_wset)
    else:
        import resource

        own, largest = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        peak = (own + _at_once[0] * largest) * (1 if sys.platform == "darwin" else 1 << 10)
    return peak


def _cgroup_limits() -> Iterator[tuple[int, int]]:
    """Limit and use of each control group that this process is in and that has a limit."""
    for folder in {*_cgroup_folders()}:
        for limit_file, use_file in _FILES:
            try:  # without a limit the file holds `max`, or a number that no machine has
                yield int((folder / limit_file).read_text("ascii")), int((folder / use_file).read_text("ascii"))
            except (OSError, ValueError):
                continue


def _cgroup_folders() -> Iterator[Path]:
    """Folders of memory controllers that may apply. In a container its own group is the root, whatever its name."""
    roots = (_CGROUPS, _CGROUPS / "memory")
    yield from roots
    try:
        lines = Path("/proc/self/cgroup").read_text("utf-8").splitlines()
    except OSError:
        return
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if controllers in ("", "memory"):
            own = roots[bool(controllers)] / path.lstrip("/")
            yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(_CGROUPS))
