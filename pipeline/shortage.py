"""Recognizes that the system gave this process no more memory, addresses or threads.

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
    meets it long before memory is full.
    """
    if not _is_one(error):
        return None
    limit = _limit_bytes()
    said = f"{type(error).__name__}: {error}".removesuffix(": ")
    limited = f"addresses are limited to {limit // _UNIT} MB here (ulimit -v); " if limit is not None else ""
    first = "run 'ulimit -v unlimited'" if limited else "end other programs, or use a machine with more memory"
    return WorkerError(
        "the system gave doit no more memory",
        where="doit's own process, not a step",
        why=limited + said,
        remedy=f"{first}, then run the same command again: what was built is kept",
    )


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
    return isinstance(error, RuntimeError) and str(error) == _NO_THREAD


def _limit_bytes() -> int | None:
    """How many bytes of addresses this process may have; None without a limit, or where systems know none."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft
