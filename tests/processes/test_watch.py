"""Limits of time and memory, of real processes."""

from __future__ import annotations

import os
import sys
import threading
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

from pipeline.processes import process
from pipeline.processes.watch import Allowance, Watch, Watched

_HELD = "held = bytearray(b'x') * 200_000_000; "
_EAT = f"import time; {_HELD}time.sleep(600)"
_MINUTE_S = 60.0


def run(code: str, allowance: Allowance, folder: Path) -> tuple[int, Watched]:
    """The exit status of a Python process with that allowance, and what was seen of it."""
    watched = Watched(allowance)
    during = partial(Watch().over, watched=watched, end=process.end)
    command = [sys.executable, "-c", code]
    return process.run(command, log=folder / "log", cwd=folder, env=os.environ, during=during), watched


def test_who_stays_within_them_is_left_alone(tmp_path: Path) -> None:
    status, watched = run("import time; time.sleep(1.2)", Allowance(_MINUTE_S, 1 << 30), tmp_path)
    assert (status, watched.excess) == (0, None)
    assert watched.seconds >= 0.5


def test_who_takes_too_long_is_ended(tmp_path: Path) -> None:
    status, watched = run("import time; time.sleep(600)", Allowance(0.7, 1 << 30), tmp_path)
    assert status != 0
    assert watched.excess is not None
    assert not watched.excess.for_memory
    assert watched.excess.seconds > 0.7


@pytest.mark.parametrize("where", ["itself", "child", "child of a child that ended", "child in a session of its own"])
def test_who_uses_too_much_memory_is_ended(tmp_path: Path, where: str) -> None:
    start = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {_EAT!r}]"
    wait = "import time; time.sleep(600)"
    code = {
        "itself": _EAT,
        "child": f"{start}); {wait}",
        "child of a child that ended": f"import subprocess, sys; "
        f"subprocess.run([sys.executable, '-c', {start + ')'!r}]); {wait}",
        "child in a session of its own": f"{start}, start_new_session=True); {wait}",
    }[where]
    status, watched = run(code, Allowance(_MINUTE_S, 150_000_000), tmp_path)
    assert status != 0
    assert watched.excess is not None
    assert watched.excess.for_memory
    assert watched.excess.bytes > 150_000_000
    assert psutil.wait_procs(watched.members.values(), timeout=10)[1] == []


@pytest.mark.skipif(sys.platform != "linux", reason="what processes share is told by Linux")
def test_memory_that_is_shared_counts_once(tmp_path: Path) -> None:
    code = f"import os, time; {_HELD}os.fork(); os.fork(); time.sleep(1.5)"
    status, watched = run(code, Allowance(_MINUTE_S, 300_000_000), tmp_path)
    assert (status, watched.excess) == (0, None)


def test_watching_costs_next_to_nothing(tmp_path: Path) -> None:
    watch, ends = Watch(), threading.Event()

    def hold(child: psutil.Popen) -> None:
        with watch.over(child.pid, Watched(Allowance(_MINUTE_S, 1 << 40)), process.end):
            ends.wait(60)

    children = [psutil.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) for _ in range(4)]
    threads = [threading.Thread(target=hold, args=(child,)) for child in children]
    before = time.process_time()
    for thread in threads:
        thread.start()
    time.sleep(3)
    used_s = time.process_time() - before
    ends.set()
    for thread, child in zip(threads, children, strict=True):
        thread.join()
        child.kill()
        child.wait()
    assert used_s < 0.3, "of the three seconds that passed"
