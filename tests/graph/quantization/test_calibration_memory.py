"""Calibrating with many samples takes no more memory than with few."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
def test_histograms_of_512_samples_take_as_much_memory_as_of_16() -> None:
    command = [sys.executable, "tests/bench/calibration_memory.py", "percentile"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stdout
