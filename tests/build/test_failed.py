"""What becomes of a build of which a part fails: the rest ships, and what failed can be looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.support.project import Project
from tests.support.tiny_models import float_model, sample

pytestmark = pytest.mark.slow

CONFIG = """\
source: {path: ../model}
components:
  good: {file: good.onnx}
  bad: {file: bad.onnx, quantization: {weights: uint8}, thresholds: {quantization_db: %s}}
buckets: {sequence: [8]}
calibration: {reader: npz, folder: calibration/samples}
targets: [sm8650]
"""
FOLDER = "artifacts/pair/sm8650"
IMPOSSIBLE, EASY = "99", "20"


@pytest.fixture
def pair(tmp_path: Path) -> Project:
    """Two components of one model, the second of which is asked for more than 8 bits can give."""
    project = Project.create(tmp_path / "project", tmp_path / "store")
    (project.root / "model").mkdir()
    float_model(tmp_path / "made", sequence="sequence")
    for name in ("good", "bad"):
        onnx.save(onnx.load(tmp_path / "made" / "model.onnx"), project.root / "model" / f"{name}.onnx")
    (project.root / "calibration" / "samples").mkdir()
    for seed in range(6):
        values = sample(3 + seed % 5, seed)
        np.savez(project.root / "calibration" / "samples" / f"{seed}.npz", x=values)
    project.write("configs/pair.yaml", CONFIG % IMPOSSIBLE)
    return project


def manifest(project: Project) -> dict[str, object]:
    found: dict[str, object] = json.loads((project.root / FOLDER / "manifest.json").read_bytes())
    return found


def test_what_passed_ships_without_what_failed(pair: Project) -> None:
    run = pair.doit("build", check=False)
    assert run.status == 16
    assert "FAILED             verify:pair/bad/8" in run.text
    assert "artifacts/pair/ (without bad)" in run.text
    assert manifest(pair)["missing"] == ["bad"]
    assert {path.name for path in (pair.root / FOLDER).glob("*.bin")} == {"good_8_ctx_qnn.bin"}
    again = pair.doit("build", check=False)
    assert again.status == 16
    assert not again.built

    pair.write("configs/pair.yaml", CONFIG % EASY)
    pair.doit("build")
    assert "missing" not in manifest(pair)
    assert {path.name for path in (pair.root / FOLDER).glob("*.bin")} == {"good_8_ctx_qnn.bin", "bad_8_ctx_qnn.bin"}

    whole = pair.artifacts()
    pair.write("configs/pair.yaml", CONFIG % IMPOSSIBLE)
    assert pair.doit("build", check=False).status == 16
    assert pair.artifacts() == whole, "files of a whole build belong together, and stay"


def test_what_failed_lies_in_a_folder_of_its_own(pair: Project) -> None:
    run = pair.doit("build", check=False)
    folder = pair.root / ".build/failed/pair/bad"
    assert "what was made is in .build/failed/pair/bad/" in run.text
    model = onnx.load(folder / "qdq" / "model.onnx")
    assert any(node.op_type == "DequantizeLinear" for node in model.graph.node)
    readme = (folder / "README.md").read_text("utf-8")
    assert "verify:pair/bad/8 failed" in readme
    assert "doit blame:pair/bad/8" in readme
    worst = np.load(folder / "blame" / "worst.npz")
    assert {*worst.files} == {"input:x", "expected:y", "got:y"}
    assert 0 < abs(worst["got:y"] - worst["expected:y"]).max() < 1
    script = readme.split("```python\n")[1].split("```")[0]
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("y largest error: got")
    assert not (pair.root / ".build/failed/pair/good").exists()

    pair.write("configs/pair.yaml", CONFIG % EASY)
    pair.doit("build")
    assert not (pair.root / ".build/failed/pair").exists()


def test_a_step_that_fails_leaves_what_came_before_it(pair: Project) -> None:
    pair.write("configs/pair.yaml", CONFIG % EASY)
    pair.edit(
        "pipeline/stages/context.py",
        "def run(request: StageRequest) -> StageResult:\n",
        "def run(request: StageRequest) -> StageResult:\n    assert 'bad' not in request.step\n",
    )
    run = pair.doit("build", check=False)
    assert run.status == 18
    assert "artifacts/pair/ (without bad)" in run.text
    assert (pair.root / ".build/failed/pair/bad/qdq/model.onnx").is_file()
    assert not (pair.root / ".build/failed/pair/bad/context").exists()
