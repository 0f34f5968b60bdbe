"""Bytes of memory: how many there are, how many a build may use, and how many this process used at most."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from pipeline.errors import ConfigError

VARIABLE = "PIPELINE_MEMORY"
_SHARE = 0.8  # of what is available; the rest is for the build itself, the page cache and estimates that are too low
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_OOM_SCORE = 500  # of 1000: as if it used half of the memory more than it does (proc_pid_oom_score_adj(5))
_CGROUPS = Path("/sys/fs/cgroup")
# (limit, use) of control groups, version 2 and 1 (https://docs.kernel.org/admin-guide/cgroup-v2.html)
_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))


def given_bytes(environ: Mapping[str, str]) -> int | None:
    """What all running steps may use together as PIPELINE_MEMORY says (`12G`, `800M`), None if it isn't there.

    Raises:
        ConfigError: the variable is no size.
    """
    if VARIABLE not in environ:
        return None
    text = environ[VARIABLE].strip()
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?", text, re.IGNORECASE)
    if match is None or float(match[1]) == 0:
        raise ConfigError(
            f"{VARIABLE}={text} is not an amount of memory",
            where="environment",
            why="" if text else "it is set, and blank",
            remedy=f"write a number of bytes, or one with K, M or G, such as {VARIABLE}=12G, or unset it",
        )
    return int(float(match[1]) * _UNITS[match[2].upper()])


def budget_bytes(environ: Mapping[str, str]) -> int:
    """What all running steps may use together: as PIPELINE_MEMORY says, else 80 % of what is free now.

    Raises:
        ConfigError: the variable is no size.
    """
    if given := given_bytes(environ):
        return given
    import psutil  # 60 ms that a build with nothing to do need not pay

    available = int(psutil.virtual_memory().available)
    left = [limit - used for limit, used in _cgroup_limits()]
    return int(max(min([available, *left]), 1) * _SHARE)


def total_bytes() -> int:
    """The memory of this machine, or of the container if that has less."""
    import psutil

    return min([int(psutil.virtual_memory().total), *(limit for limit, _ in _cgroup_limits())])


def go_first() -> None:
    """Have Linux end this process and its children, rather than the build, when memory runs out."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(f"{_OOM_SCORE}\n", "ascii")


def oom_kills() -> int | None:
    """How many processes Linux has ended since it started for want of memory; None where that is not told."""
    try:
        words = Path("/proc/vmstat").read_text("ascii").split()
        return int(words[words.index("oom_kill") + 1])
    except (OSError, ValueError):
        return None


def peak_bytes() -> int:
    """The most that this process had resident at once, plus the same of the largest of its children that ended.

    Never too low, but Linux says of a child that it had at least as much as its parent had when it started it. Windows
    says nothing of children.
    """
    if sys.platform == "win32":
        import psutil

        peak = int(psutil.Process().memory_info().peak_wset)
    else:
        import resource

        kilobytes = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        peak = sum(kilobytes) * (1 if sys.platform == "darwin" else 1 << 10)
    return peak


def _cgroup_limits() -> Iterator[tuple[int, int]]:
    """Limit and use of each control group that this process is in, where there is a limit."""
    for folder in {*_cgroup_folders()}:
        for limit_file, use_file in _FILES:
            try:  # without a limit the file says `max`, or a number no machine has
                yield int((folder / limit_file).read_text("ascii")), int((folder / use_file).read_text("ascii"))
            except (OSError, ValueError):
                continue


def _cgroup_folders() -> Iterator[Path]:
    """Those of the memory controllers; in a container, what the host calls its group is the root."""
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
