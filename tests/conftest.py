"""Projects that several test files build on. What was built once per session is copied, never changed."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from tests.models import bert
from tests.project import ROOT, Project

BERT = """\
source: {path: ../models/bert}
components:
  encoder: {file: onnx/model.onnx}
fixed: {batch: 1}
buckets: {sequence: [16, 32]}
calibration: {reader: text, file: calibration/lines.txt, tokenizer: tokenizer.json}
verification: {samples: {reader: text, file: calibration/held_out.txt, tokenizer: tokenizer.json}}
targets: [snapdragon-x-elite, sm8650]
"""


def pytest_configure() -> None:
    """Tests press Ctrl-C: what they start must not inherit that it is ignored, as it is in a shell's background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that all projects of the session share: equal work is done once."""
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="session")
def bert_project(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Project:
    """A small encoder with two buckets and two targets; not built yet."""
    project = Project.create(tmp_path_factory.mktemp("bert") / "project", store)
    bert.write(project.root / "models" / "bert")
    lines = (ROOT / "calibration" / "minilm" / "sentences.txt").read_text("utf-8").splitlines()
    words = [line.split() for line in lines if line]
    project.write(
        "calibration/lines.txt", "\n".join(" ".join(line[: 2 + at]) for at, line in enumerate(words[:8])) + "\n"
    )
    project.write(
        "calibration/held_out.txt", "\n".join(" ".join(line[: 2 + at]) for at, line in enumerate(words[8:14]))
    )
    project.write("configs/bert.yaml", BERT)
    return project


@pytest.fixture(scope="session")
def bert_built(bert_project: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The same, built."""
    project = bert_project.copy(tmp_path_factory.mktemp("built") / "project")
    project.doit("build")
    return project


@pytest.fixture
def project(bert_built: Project, tmp_path: Path) -> Project:
    """A built project of the test's own."""
    return bert_built.copy(tmp_path / "project")


@pytest.fixture
def fresh_store(store: Path, tmp_path: Path) -> Path:
    """A copy of the session's store that a test may damage."""
    shutil.copytree(store, tmp_path / "store")
    return tmp_path / "store"
