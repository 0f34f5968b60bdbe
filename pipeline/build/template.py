"""A process with what the stages of a build need imported, of which each step gets a copy.

It is started as `python -m pipeline.build.template`.

Its standard input is a Unix socket of messages. Each is the name of a stage and has a channel of its own with it,
another socket, and the read end of a :mod:`pipeline.processes.lifeline`. The template imports the stage, if it is the
first of its kind, forks, and writes the child's process id and later its exit status into the channel, a line each; the
child reads one line of JSON from it: the path of its request, its log, its folder and its environment. If there can be
no child now, the template writes a 0 and closes the channel. See :mod:`pipeline.build.warm` for the other end.

The template itself runs no stage, starts no thread and loads no QNN library, so that a child is what a fresh process
would be after its imports. Once an import starts a thread, there are no more children. When its standard input ends,
its build has died; it ends its children and itself.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from pipeline.build import worker
from pipeline.processes import addresses, forked, lifeline
from pipeline.processes.memory import go_first

assert sys.platform != "win32"
_Stamp = tuple[int, int, int]
_Stamps = Mapping[str, _Stamp]
_PACKAGE = Path(__file__).resolve().parents[1]
_APART = frozenset({"fetch"})  # the hub's client reads the environment, tokens included, when it is imported
_WITH: Mapping[str, Sequence[str]] = {"context": ("pipeline.qnn.compiling.compile",)}
"""Modules that a stage imports only when it needs them, and that take longer to import than a fork takes."""
_LONGEST = 256
"""Bytes of a message."""
_FAILED = 70  # EX_SOFTWARE of sysexits.h: the child did not get as far as its worker


def main() -> int:
    """Serve until standard input ends."""
    lifeline.hold()
    gc.disable()
    stamps = _stamps()
    addresses.settle_libraries()
    _serve(socket.socket(fileno=0), stamps)
    return 0


def _import_stage(stage: str) -> bool:
    """Import what a stage needs; whether this process is still safe to fork."""
    if stage not in _APART:
        try:
            for name in (f"pipeline.stages.{stage}", *_WITH.get(stage, ())):
                importlib.import_module(name)
        except Exception:
            traceback.print_exc()  # the step that needs it meets the same, and says so
        if definitions := sys.modules.get("onnx.defs"):
            definitions.has("Identity")  # ONNX makes its definitions when it is first asked for one: 10 ms
    if len(os.listdir("/proc/self/task")) > 1:  # noqa: PTH208  # names are all that is wanted
        print("an import started a thread: a copy of this process could hang", file=sys.stderr, flush=True)
        return False
    gc.freeze()  # a collection in a child would copy the pages that it shares
    return True


def _stamps() -> _Stamps:
    """The `stat` of each of our own modules, taken before it is imported."""
    files = (f"{folder}/{name}" for folder, _, names in os.walk(_PACKAGE) for name in names if name.endswith(".py"))
    return {path: _stamp(path) for path in files}


def _stamp(path: str) -> _Stamp:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns, status.st_ino


def _edited(stamps: _Stamps) -> bool:
    """Whether a file of our own code has changed or gone: one that is new matters only once another imports it."""
    try:
        return any(_stamp(path) != stamp for path, stamp in stamps.items())
    except OSError:
        return True


def _serve(control: socket.socket, stamps: _Stamps) -> None:
    imported: set[str] = set()
    forks = True  # until an import starts a thread
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    channels: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([control, woken], [], [])
        if woken in ready:
            woken.recv(4096)
            _reap(channels)
        if control in ready:
            message, descriptors, _, _ = socket.recv_fds(control, _LONGEST, 2)
            if not descriptors:
                break
            channel, line = socket.socket(fileno=descriptors[0]), descriptors[1]
            stage = message.decode()
            if stage not in imported:
                imported.add(stage)
                forks = forks and _import_stage(stage)
            try:
                child = os.fork() if forks else None
            except OSError as error:  # no memory, or no process left: of this step alone
                print(f"a step can't be forked: {error}", file=sys.stderr, flush=True)
                child = None
            if child is None:
                os.close(line)
                with channel:
                    _tell(channel, 0)
                continue
            if child == 0:
                _become_worker(channel, line, (control, woken, wake, *channels.values()), stamps)
            os.close(line)
            _own_group(child)
            channels[child] = channel
            _tell(channel, child)
    for child in channels:
        with contextlib.suppress(OSError):
            os.killpg(child, signal.SIGKILL)


def _reap(channels: dict[int, socket.socket]) -> None:
    while channels:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return
        child = ended.si_pid
        with contextlib.suppress(OSError):  # none is left in its group, whose number is its own until it is reaped
            os.killpg(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        with channels.pop(child) as channel:
            _tell(channel, os.waitstatus_to_exitcode(status))


def _tell(channel: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # nobody waits for it any more
        channel.sendall(f"{number}\n".encode())


def _own_group(child: int) -> None:
    """Put a child into a process group of its own: done on both sides, as either may come first."""
    with contextlib.suppress(OSError):  # it has done so, or has ended
        os.setpgid(child, child)


def _become_worker(
    channel: socket.socket,
    line: int,
    inherited: Iterable[socket.socket],
    stamps: _Stamps,
) -> NoReturn:
    """Be the worker of one step and end. Never returns, so that no child is ever taken for the template."""
    status = _FAILED
    try:
        _own_group(0)
        lifeline.arm(line, os.getpid())
        os.set_inheritable(line, True)
        go_first()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in inherited:
            each.close()
        with channel, channel.makefile("r", encoding="utf-8") as stream:
            job = json.loads(stream.readline())
        job["environ"][lifeline.VARIABLE] = str(line)
        _redirect(Path(job["log"]))
        os.chdir(job["cwd"])
        if _edited(stamps):  # our code was edited: what is imported here is no longer what the step's key says
            os.execve(
                sys.executable, [sys.executable, "-P", "-m", "pipeline.build.worker", job["request"]], job["environ"]
            )
        os.environ.clear()
        os.environ.update(job["environ"])
        gc.enable()
        forked.allow()
        status = worker.main(job["request"])
    except BaseException:
        with contextlib.suppress(OSError):  # the log's disk may be full
            traceback.print_exc()
    finally:
        forked.leave(status)


def _redirect(log: Path) -> None:
    """Standard input from nowhere, both outputs to the log."""
    for target, path, flags in ((0, Path(os.devnull), os.O_RDONLY), (1, log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)):
        descriptor = os.open(path, flags, 0o666)
        if descriptor == target:  # the control channel was standard input, and is closed
            os.set_inheritable(target, True)  # as what dup2 makes is
        else:
            os.dup2(descriptor, target)
            os.close(descriptor)
    os.dup2(1, 2)


if __name__ == "__main__":
    os._exit(main())  # nothing is left that the interpreter would have to tidy up for 50 ms
