"""The compiler finds the same addresses in every process: what it writes behind small constants has some of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.processes import addresses

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not addresses.SETTLED, reason="only where QNN's compiler runs and the address space is known")
def test_memory_is_at_the_same_addresses_in_every_process() -> None:
    found = {_where_memory_is("x" * length) for length in (0, 777, 5000)}

    assert len(found) == 1


def _where_memory_is(variable: str) -> str:
    environ = {**os.environ, **addresses.ENVIRONMENT, "VARIABLE": variable, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", addresses.__name__, "tests.support.where_memory_is"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]
