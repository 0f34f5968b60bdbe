"""Children that are copies of a worker: each test is in a process of its own, as pytest's must not be copied."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="no fork, or one that libraries do not survive")

_START = "import os, signal, sys, threading, time\nfrom pathlib import Path\nfrom pipeline.processes import forked\n"


def told(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", _START + code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_only_a_worker_that_says_so_may_be_copied() -> None:
    assert told("print(forked.is_allowed()); forked.allow(); print(forked.is_allowed())").split() == ["False", "True"]


def test_a_process_with_two_threads_may_not() -> None:
    code = """
forked.allow()
ends = threading.Event()
thread = threading.Thread(target=ends.wait)
thread.start()
print(forked.is_allowed())
ends.set()
thread.join()
until = time.monotonic() + 10
while len(os.listdir("/proc/self/task")) > 1 and time.monotonic() < until:
    time.sleep(0.001)  # Linux lists a thread for a moment after it was joined
print(forked.is_allowed())
"""
    assert told(code).split() == ["False", "True"]


@pytest.mark.parametrize(
    ("work", "status"),
    [
        ("print('done')", 0),
        ("sys.exit(17)", 17),
        ("sys.exit()", 0),
        ("sys.exit('said')", 70),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("[][0]", 70),
    ],
)
def test_the_exit_status_is_as_of_a_program(work: str, status: int) -> None:
    assert told(f"print('status', forked.start(lambda: {work}).wait())").split()[-1] == str(status)


def test_what_it_prints_is_added_to_the_log_and_ours_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n", "utf-8")
    work = "lambda: (print('inside', flush=True), os.write(2, b'native'))"
    assert told(f"forked.start({work}, Path({str(log)!r})).wait(); print('outside')") == "outside\n"
    assert log.read_text("utf-8") == "before\ninside\nnative"


def test_a_copy_changes_nothing_of_ours() -> None:
    assert told("made = []; forked.start(lambda: made.append(1)).wait(); print(made)") == "[]\n"


def test_two_run_at_once_without_a_thread() -> None:
    """The first waits for what the second writes."""
    code = """
forked.allow()
ours, theirs = os.pipe()
first = forked.start(lambda: sys.exit(os.read(ours, 1)[0]))
print(forked.is_allowed())
second = forked.start(lambda: os.write(theirs, bytes([23])))
print(second.wait(), first.wait(), first.wait())
"""
    assert told(code).split() == ["True", "0", "23", "23"]


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        ("print()", ""),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "its process is killed by signal 11 (SIGSEGV)"),
        ("[][0]", "it raises an error"),
        ("[None for _ in iter(int, 1)]", "it takes more than 1 seconds"),
        ("time.sleep(60)", "it takes more than 1 seconds"),
    ],
)
def test_work_that_ends_its_process_or_never_ends_is_an_answer(work: str, reason: str) -> None:
    assert told(f"forked.allow(); print(forked.attempt(lambda: {work}, 1))").strip() == reason


def test_work_is_done_here_where_no_child_may_be_made() -> None:
    assert told("print(forked.attempt(lambda: [][0], 1))").strip() == "IndexError: list index out of range"
