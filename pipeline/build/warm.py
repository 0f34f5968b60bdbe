"""Workers that start warm: the build's end of :mod:`pipeline.build.template`."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path

from pipeline.processes import process

# Elsewhere there is no fork, or one that system libraries do not survive.
AVAILABLE = sys.platform == "linux"
_GRACE_S = 5
_LOOK_S = 1.0
_STOPPED_S = 5.0  # who stops it by mistake has so long to have it go on


class TemplateLostError(Exception):
    """The template ended, or never came up, while it had a step to run."""


class NotForkedError(Exception):
    """The template could not make a child for a step, which has not begun; for others it goes on."""


class Template:
    """A template process and the children that it forks. Safe to use from several threads."""

    def __init__(self, *, log: Path, cwd: Path, env: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        # Of messages, not of bytes: two requests never run into one.
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        log.parent.mkdir(parents=True, exist_ok=True)
        with theirs, log.open("wb") as stream:
            command = [sys.executable, "-P", "-m", "pipeline.build.template"]
            self._process = process.start(command, stdin=theirs.fileno(), log=stream, cwd=cwd, env=env)

    def run(
        self,
        request: Path,
        stage: str,
        *,
        log: Path,
        cwd: Path,
        env: Mapping[str, str],
        during: process.During = lambda _: nullcontext(),
    ) -> int:
        """Run the step of a request file to its end in a child of its own; the exit status, as from subprocess.

        Raises:
            NotForkedError: the system gave it no process or memory for a child.
            TemplateLostError: the template ended first. The step may have run in part.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair()
        with ours, ExitStack() as unowned:
            replies = self._replies(ours)
            try:
                writing = self._ask(theirs, stage)
                unowned.callback(os.close, writing)
                job = {"request": str(request), "log": str(log), "cwd": str(cwd), "environ": dict(env)}
                with contextlib.suppress(ConnectionError):  # nobody reads it: the replies say why, or end
                    ours.sendall(json.dumps(job).encode() + b"\n")
                child = next(replies)
                if not child:
                    raise NotForkedError
                unowned.pop_all()
                with process.adopted(child, writing) as release, during(child):
                    status = next(replies)
                    release()
                    return status
            except (OSError, ValueError, StopIteration) as error:
                raise TemplateLostError from error

    def _replies(self, channel: socket.socket) -> Iterator[int]:
        """The numbers that the template writes, to its end. One that is stopped (SIGSTOP) writes none: it is ended."""
        said = b""
        stopped_s = 0.0
        while True:
            while b"\n" not in said:
                ready, _, _ = select.select([channel], [], [], _LOOK_S)
                if ready:
                    if not (more := channel.recv(64)):
                        return
                    said += more
                    continue
                stopped_s = stopped_s + _LOOK_S if self._is_stopped() else 0.0
                if stopped_s >= _STOPPED_S:
                    process.end(self._process.pid)
                    return
            line, said = said.split(b"\n", 1)
            yield int(line)

    def _is_stopped(self) -> bool:
        import psutil  # slow: a build with nothing to do need not pay for it

        with contextlib.suppress(psutil.Error):
            return bool(psutil.Process(self._process.pid).status() == psutil.STATUS_STOPPED)
        return False

    def _ask(self, channel: socket.socket, stage: str) -> int:
        """Ask for a child for a step of a stage, at the other end of `channel`; our end of its lifeline."""
        reading, writing = os.pipe()
        try:
            with channel, self._lock:
                if sys.platform != "win32":  # where AVAILABLE is false
                    socket.send_fds(self._control, [stage.encode()], [channel.fileno(), reading])
        except BaseException:
            os.close(writing)
            raise
        finally:
            os.close(reading)
        return writing

    def close(self) -> None:
        """End the template, which ends its children."""
        with self._lock:
            self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_GRACE_S)
        process.end(self._process.pid)
        self._process.wait()
