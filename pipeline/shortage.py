"""Recognizes that the system gave this process no more memory, addresses, threads or processes.

Needs the standard library alone.
"""

from __future__ import annotations

import errno
import mmap
import re
import sys
import threading

from pipeline.errors import PipelineError, WorkerError

_UNMAPPED = re.compile(r"cannot allocate memory|failed to map segment|cannot create shared object descriptor", re.I)
_NO_THREAD = "can't start new thread"  # CPython's words; the exception is a plain RuntimeError
_UNIT = 1000_000
_ROOM_THREADS = 32
"""More than QNN starts: a compile fails where 11 are left, the later of two emulators where 20 are."""
_ROOM_BYTES = 512 * _UNIT
"""A tiny model compiles where addresses are limited to 1 GB, and does not at 600 MB."""
_STACK_BYTES = 1 << 18  # so that these threads need no addresses to speak of


def shortage(error: BaseException, step: str = "") -> WorkerError | None:
    """The error for a user if `error` says that the system gave no more; None if it says anything else.

    Its `why` names the limit of addresses where there is one (ulimit -v): a process that reserves much and uses little
    meets it long before memory is full, and a thread reserves its stack. It is about `step`, if not about doit itself.
    """
    if not _is_one(error):
        return None
    limit = _limit_bytes()
    if limit is None and _is_thread(error):
        return no_more_processes(error, step)
    return _no_memory(limit, _said(error), step)


def no_more_processes(error: BaseException, step: str = "") -> WorkerError:
    """The error for a user where a process could not be started (EAGAIN, which says other things elsewhere)."""
    return _no_threads(_said(error), step)


def shortage_behind(error: BaseException | str, step: str = "") -> WorkerError | None:
    """The same where native code failed and does not say of what: None if it may have had what it needed.

    QNN compiles nothing, or something else than it should, where it can't start its threads. Which threads it has had
    is not known any more, so this tries more than it takes.
    """
    limit, why = _limit_bytes(), f"this failed: {error.what if isinstance(error, PipelineError) else error}"
    if limit is not None and not _may_map(_ROOM_BYTES):
        return _no_memory(limit, f"{_ROOM_BYTES // _UNIT} MB more can't be had, and {why}", step)
    started = _startable(_ROOM_THREADS)
    if started == _ROOM_THREADS:
        return None
    return _no_threads(f"of {_ROOM_THREADS} threads more {started} could be started, and {why}", step)


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


def _no_memory(limit: int | None, why: str, step: str) -> WorkerError:
    if limit is not None:
        limited = f"addresses are limited to {limit // _UNIT} MB here (ulimit -v); "
        return _told("memory", limited + why, "run 'ulimit -v unlimited'", step)
    fewer = "run fewer steps at a time (doit -n 1), use a smaller bucket" if step else "end other programs"
    return _told("memory", why, f"{fewer}, or use a machine with more memory", step)


def _no_threads(why: str, step: str) -> WorkerError:
    first = "raise how many a user ('ulimit -u') or a container ('pids.max') may have, or end other programs"
    return _told("threads or processes", why, first, step)


def _told(what: str, why: str, first: str, step: str) -> WorkerError:
    error = WorkerError(
        f"the system gave {step or 'doit'} no more {what}",
        where="the step's process" if step else "doit's own process, not a step",
        why=why,
        remedy=f"{first}, then run the same command again: what was built is kept",
    )
    error.of_machine = True
    return error


def _may_map(count: int) -> bool:
    try:
        mmap.mmap(-1, count).close()
    except OSError:
        return False
    return True


def _startable(count: int) -> int:
    """How many threads of so many can be started beside those that there are."""
    enough = threading.Event()
    threads: list[threading.Thread] = []
    stack = threading.stack_size(_STACK_BYTES)
    try:
        for _ in range(count):
            thread = threading.Thread(target=enough.wait)
            thread.start()
            threads.append(thread)
    except RuntimeError:  # as many as there may be
        pass
    finally:
        threading.stack_size(stack)
        enough.set()
        for thread in threads:
            thread.join()
    return len(threads)


def _limit_bytes() -> int | None:
    """How many bytes of addresses this process may have; None without a limit, or where systems know none."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft
