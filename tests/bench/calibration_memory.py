"""Peak memory of calibrating with few and with many samples: `uv run python tests/bench/calibration_memory.py
[METHOD]`.

Calibrates the BERT stand-in of the tests, each time in a process of its own, and prints the peaks and their ratio.
Exits with 1 if many samples take more than LIMIT times the memory of few.
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
FEW, MANY = 16, 512
LIMIT = 1.2
LENGTH = 64
MIB = 1024  # ru_maxrss is in KiB on Linux


def main(method: str) -> int:
    """Print the peak of each count, and the ratio."""
    peaks = {}
    for count in (FEW, MANY):
        started = time.perf_counter()
        command = [sys.executable, __file__, method, str(count)]
        done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
        peaks[count] = int(done.stdout.splitlines()[-1])
        seconds = time.perf_counter() - started
        print(f"{method:12} {count:4} samples  {peaks[count] / MIB:7.1f} MiB  {seconds:6.1f} s")
    ratio = peaks[MANY] / peaks[FEW]
    print(f"{method:12} ratio {ratio:.3f}, limit {LIMIT}")
    return int(ratio > LIMIT)


def calibrate(method: str, count: int) -> None:
    """Calibrate with `count` samples and print this process's peak memory in KiB."""
    sys.path.insert(0, str(ROOT))
    from tests.support.models import bert
    from tests.support.stage_runs import Component

    numbers = np.random.default_rng(0)
    calls = []
    for length in numbers.integers(8, LENGTH, count):
        ids = numbers.integers(0, len(bert.vocabulary()), (1, length))
        calls.append({"input_ids": ids, "attention_mask": np.ones((1, length), np.int64)})
    with tempfile.TemporaryDirectory() as folder:
        component = Component(Path(folder), bert.encoder(), {str(LENGTH): {"sequence": LENGTH}})
        component.calibrate(calls, method=method, percentile=99.99)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


if __name__ == "__main__":
    chosen = sys.argv[1] if len(sys.argv) > 1 else "percentile"
    if len(sys.argv) > 2:
        calibrate(chosen, int(sys.argv[2]))
    else:
        sys.exit(main(chosen))
