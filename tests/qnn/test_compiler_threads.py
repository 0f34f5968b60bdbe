"""The compiler finds the same addresses in every process: what it writes behind small constants has some of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.processes import addresses

ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.skipif(
    not addresses.SETTLED, reason="only where QNN's compiler runs and the address space is known"
)


def test_memory_is_at_the_same_addresses_in_every_process() -> None:
    found = {_where_memory_is(*how, variable="x" * length) for how in ((), ("fork",)) for length in (0, 5000)}

    assert len(found) == 1


@pytest.mark.parametrize(
    ("error", "comes_of_it"),
    [('RuntimeError("can\'t start new thread")', "went on"), ("KeyError('other')", "KeyError")],
)
def test_no_thread_waits_for_one_that_could_not_be_started(error: str, comes_of_it: str) -> None:
    code = f"""
import itertools, threading
from pipeline.qnn.compiling.compiler_threads import compiler_threads
start, started = threading.Thread.start, itertools.count()

def fails_at_the_eleventh(thread):
    if next(started) == 10:
        raise {error}
    start(thread)

threading.Thread.start = fails_at_the_eleventh
compiler_threads()
print("went on")
"""
    done = subprocess.run([sys.executable, "-c", code], env=_environ(), capture_output=True, text=True, timeout=60)
    assert comes_of_it in done.stdout + done.stderr


def _where_memory_is(*arguments: str, variable: str) -> str:
    command = [sys.executable, "-m", addresses.__name__, "tests.support.where_memory_is", *arguments]
    done = subprocess.run(command, env=_environ(VARIABLE=variable), capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


def _environ(**more: str) -> dict[str, str]:
    return {**os.environ, **addresses.ENVIRONMENT, "PYTHONPATH": str(ROOT), **more}
