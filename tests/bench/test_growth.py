"""A project whose steps all stand for one model's: doit has nothing to do in it, and knows each step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import growth

pytestmark = pytest.mark.slow


def test_all_steps_of_a_matrix_are_current(tmp_path: Path) -> None:
    root = tmp_path / "project"
    steps = growth.create(root, 2, buckets=(8, 9), targets=("sm8550", "sm8650"))
    assert steps == 2 * 20
    for _ in range(2):  # the first writes artifacts
        told = subprocess.run(
            [sys.executable, "-m", "doit", "build"], cwd=root, capture_output=True, text=True, check=True
        )
    assert f"Nothing to do: all {steps} steps are current." in told.stdout
