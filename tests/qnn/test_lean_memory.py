"""What a compile's process freed or read of files goes back to the system."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from pipeline.qnn.compiling.compiler import unread

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/status is Linux's")
MB = 1 << 20


def resident_mb(kind: str) -> float:
    """`RssFile` or `RssAnon` of this process."""
    (line,) = (line for line in Path("/proc/self/status").read_text("ascii").splitlines() if line.startswith(kind))
    return int(line.split()[1]) / 1024


@pytest.fixture
def mapped(tmp_path: Path) -> np.ndarray:
    path = tmp_path / "weights.bin"
    np.arange(16 * MB, dtype=np.uint32).tofile(path)
    return np.memmap(path, np.uint32, "r")


def test_mapped_weights_leave_memory_once_they_were_read(mapped: np.ndarray) -> None:
    with unread([mapped, np.zeros(3)]):
        total = int(mapped.sum(dtype=np.uint64))
        before = resident_mb("RssFile")
        deadline = time.monotonic() + 20
        while resident_mb("RssFile") > before - 60 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert resident_mb("RssFile") <= before - 60

        assert int(mapped.sum(dtype=np.uint64)) == total  # read anew


def test_nothing_runs_afterwards_also_after_an_error(mapped: np.ndarray) -> None:
    threads = threading.active_count()

    with pytest.raises(ValueError, match="the compiler's"), unread([mapped]):
        raise ValueError("the compiler's")

    assert threading.active_count() == threads


CHILD = """
import ctypes, sys
from pathlib import Path
from pipeline.qnn.compiling.compiler import return_freed, return_large_blocks
if sys.argv[1] != "left alone":
    return_large_blocks(0 if sys.argv[1] == "kept" else 65 << 20)
libc = ctypes.CDLL("libc.so.6")
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def block(size):
    at = libc.malloc(size)
    ctypes.memset(at, 1, size)
    return at
libc.free(block(16 << 20))
large, small = zip(*[(block(2 << 20), [block(5_000) for _ in range(100)]) for _ in range(100)])
for each in large:
    libc.free(each)
for some in small:
    for each in some[:-1]:
        libc.free(each)
if sys.argv[1] == "small":
    return_freed()
(line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon")]
print(int(line.split()[1]) // 1024)
"""


def held_mb(how: str) -> int:
    """What a child holds that freed 200 MB in blocks of 2 MB between small ones, and then every other small one."""
    return int(subprocess.run([sys.executable, "-c", CHILD, how], check=True, capture_output=True).stdout)


def test_large_blocks_are_returned_when_they_are_freed() -> None:
    assert held_mb("large") < held_mb("left alone") - 150


def test_those_of_a_small_model_are_kept() -> None:
    assert held_mb("kept") > held_mb("large") + 150


def test_small_ones_are_returned_when_that_is_asked_for() -> None:
    assert held_mb("small") < held_mb("large") - 20
