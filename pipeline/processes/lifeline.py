"""A pipe by which the kernel kills a process group as soon as the process that started it is gone (Linux).

We hold the only write end; the group's processes hold the read end. When we end for whatever reason, the kernel closes
the write end and sends SIGKILL to the group: `F_SETSIG`, `F_SETOWN` and `O_ASYNC` of fcntl(2). This needs no running
code of ours. A thread that watches the pipe could not run while native code holds Python's lock, and
`PR_SET_PDEATHSIG` fires when the thread that forked ends, and does not reach grandchildren.

The lifeline works as long as any process of the group has the read end open. A child started by :func:`subprocess.run`
needs it in `pass_fds` (:func:`inherited`), so that it is killed even if its own parent was killed before.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys

VARIABLE = "PIPELINE_LIFELINE"
"""Environment variable with the descriptor of the read end."""


def arm(descriptor: int, group: int) -> None:
    """Make the kernel kill the process group when the other end closes; kill it now if that end is closed."""
    if sys.platform == "linux":
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_SETOWN, -group)
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if poll.poll(0):  # nothing is ever written: this is the end
            os.killpg(group, signal.SIGKILL)


def inherited() -> tuple[int, ...]:
    """The read end that this process inherited, for `pass_fds`; empty if it inherited none."""
    with contextlib.suppress(KeyError, ValueError, OSError):
        descriptor = int(os.environ[VARIABLE])
        os.fstat(descriptor)
        return (descriptor,)
    return ()


def hold() -> None:
    """Arm the inherited read end, as the process that started this one may have died before it did."""
    if sys.platform == "linux":
        for descriptor in inherited():
            arm(descriptor, os.getpgrp())
