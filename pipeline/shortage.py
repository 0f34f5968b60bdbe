"""Recognizes that the system gave this process no more memory, addresses, threads or processes.

Needs the standard library alone.
"""

from __future__ import annotations

import errno
import re
import sys

from pipeline.errors import WorkerError

_UNMAPPED = re.compile(r"cannot allocate memory|failed to map segment|cannot create shared object descriptor", re.I)
_NO_THREAD = "can't start new thread"  # CPython's words; the exception is a plain RuntimeError
_UNIT = 1000_000


def shortage(error: BaseException) -> WorkerError | None:
    """The error for a user if `error` says that the system gave no more; None if it says anything else.

    Its `why` names the limit of addresses where there is one (ulimit -v): a process that reserves much and uses little
    meets it long before memory is full, and a thread reserves its stack.
    """
    if not _is_one(error):
        return None
    limit = _limit_bytes()
    if limit is None and _is_thread(error):
        return no_more_processes(error)
    limited = f"addresses are limited to {limit // _UNIT} MB here (ulimit -v); " if limit is not None else ""
    first = "run 'ulimit -v unlimited'" if limited else "end other programs, or use a machine with more memory"
    return _told("memory", limited + _said(error), first)


def no_more_processes(error: BaseException) -> WorkerError:
    """The error for a user where a process could not be started (EAGAIN, which says other things elsewhere)."""
    first = "raise how many a user ('ulimit -u') or a container ('pids.max') may have, or end other programs"
    return _told("threads or processes", _said(error), first)


def shortage_handled() -> WorkerError | None:
    """The same of the exception that is being handled, if one is."""
    error = sys.exc_info()[1]
    return None if error is None else shortage(error)


def _is_one(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM or bool(_UNMAPPED.search(str(error)))
    if isinstance(error, ImportError):
        return bool(_UNMAPPED.search(str(error)))
    return _is_thread(error)


def _is_thread(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and str(error) == _NO_THREAD


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def _told(what: str, why: str, first: str) -> WorkerError:
    error = WorkerError(
        f"the system gave doit no more {what}",
        where="doit's own process, not a step",
        why=why,
        remedy=f"{first}, then run the same command again: what was built is kept",
    )
    error.of_machine = True
    return error


def _limit_bytes() -> int | None:
    """How many bytes of addresses this process may have; None without a limit, or where systems know none."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft
