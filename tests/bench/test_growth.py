"""A project whose steps all stand for one model's: doit has nothing to do in it, and knows each step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.growth import GrowingProject

pytestmark = pytest.mark.slow


def test_all_steps_of_a_matrix_are_done_and_a_copy_is_what_it_seems(tmp_path: Path) -> None:
    root = tmp_path / "project"
    project = GrowingProject(root, buckets=(8, 9), targets=("sm8550", "sm8650"))
    project.grow(3)
    assert project.built == 20

    def built() -> str:
        command = [sys.executable, "-m", "doit", "build"]
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout

    stamps = {path: path.read_bytes() for path in (root / ".build" / "unchanged").iterdir()}
    assert f"Nothing to do: all {3 * 20} steps are current." in built()
    assert {path: path.read_bytes() for path in stamps} == stamps, "no model was looked at step by step"
    config = root / "configs" / "model-00002.yaml"
    config.write_text(config.read_text("utf-8") + "# looked at again\n", "utf-8")
    assert f"Nothing to do: all {3 * 20} steps are current." in built()
    assert (root / ".build/unchanged/model-00002.json").read_bytes() != stamps[
        root / ".build/unchanged/model-00002.json"
    ]
