"""From a build to a device: packaged, checked, opened where there is only what the runtime needs, run on the emulator.

The demo, for every length that fits; `python -m tests.release_walk` does the same by hand for what CI can't fetch.
"""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

import pytest

from tests.release_walk import NEEDS, Arrays, Walk, check_figures, check_lengths
from tests.support.environments import python_with_runtime
from tests.support.project import ROOT, Project

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="QNN's emulator is for x86_64"),
]

HELD_OUT = 90
"""Lines of the held-out file: enough for 16 in each bucket, few enough to emulate all of them."""
TARGETS = ("snapdragon-x-elite", "sm8650")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Project:
    """The model that comes with the project, built with every sample emulated, and packaged."""
    project = Project.create(tmp_path_factory.mktemp("demo") / "project", store)
    for name in ("configs/demo", "calibration/demo"):
        shutil.copytree(ROOT / name, project.root / name)
    for name in ("configs/demo.yaml", "calibration/demo.py"):
        shutil.copy(ROOT / name, project.root / name)
    texts = project.root / "calibration" / "demo" / "heldout.tsv"
    lines = texts.read_text("utf-8").splitlines(keepends=True)
    texts.write_text("".join(lines[:HELD_OUT]), "utf-8")
    project.edit(
        "configs/demo.yaml",
        "max_samples: 300}",
        f"max_samples: 300}}\n  emulator_samples: {HELD_OUT}\n  emulator_seconds: 900",
    )
    project.doit("package:demo")
    return project


@pytest.fixture(scope="module")
def walk(demo: Project, tmp_path_factory: pytest.TempPathFactory) -> Walk:
    """Its archive, checked."""
    archive = "artifacts/releases/demo-1.0.qnn.zip"
    assert "all as they were made" in demo.doit("verify-release", archive).text
    return Walk(demo.root / archive, tmp_path_factory.mktemp("walk"))


@pytest.fixture(scope="module")
def texts(demo: Project, walk: Walk) -> dict[str, Arrays]:
    """The held-out texts, as an application makes them inputs."""
    return walk.texts(demo.root / "calibration" / "demo" / "heldout.tsv")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh virtual environment."""
    return python_with_runtime(NEEDS, tmp_path_factory.mktemp("fresh") / "environment")


@pytest.mark.parametrize("target", TARGETS)
def test_every_length_gives_what_a_bare_session_gives(
    walk: Walk, python: Path, texts: dict[str, Arrays], target: str
) -> None:
    said = check_lengths(walk, python, texts, range(1, 129), target)
    assert {*NEEDS} <= {*said["packages"]}
    assert not {*said["packages"]} & {"onnx", "doit", "pyyaml", "huggingface-hub", "tokenizers"}
    assert [session["provider"] for session in said["report"]["sessions"]] == ["QNNExecutionProvider"] * 3
    assert [session["runs"] for session in said["report"]["sessions"]] == [32, 32, 64]


@pytest.mark.parametrize("target", TARGETS)
def test_its_accuracy_is_what_the_build_measured(
    demo: Project, walk: Walk, python: Path, texts: dict[str, Arrays], target: str
) -> None:
    figures = check_figures(walk, python, demo.root / "configs" / "demo" / "model.onnx", texts, target)
    assert [*figures] == [32, 64, 128]
    assert min(figure["logits"]["sqnr_db"] for figure in figures.values()) > 40
