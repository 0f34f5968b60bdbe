"""A project whose model is a small encoder: external weights, a tokenizer, two buckets and two targets."""

from __future__ import annotations

from pathlib import Path

from tests.support.models import bert
from tests.support.project import ROOT, Project

CONFIG = """\
source: {path: ../models/bert}
components:
  encoder: {file: onnx/model.onnx}
fixed: {batch: 1}
buckets: {sequence: [16, 32]}
calibration: {reader: text, file: calibration/lines.txt, tokenizer: tokenizer.json}
verification: {samples: {reader: text, file: calibration/held_out.txt, tokenizer: tokenizer.json}}
targets: [snapdragon-x-elite, sm8650]
"""


def write_model(folder: Path) -> None:
    """Its model: one layer has all that a step may meet in an encoder, and builds in four fifths of the time of two."""
    bert.write(folder, layers=1)


def create(root: Path, store: Path) -> Project:
    """The project, not built yet."""
    project = Project.create(root, store)
    write_model(root / "models" / "bert")
    lines = (ROOT / "calibration" / "minilm" / "sentences.txt").read_text("utf-8").splitlines()
    words = [line.split() for line in lines if line]
    starts = [" ".join(line[: 2 + at]) for at, line in enumerate(words[:8])]
    held_out = [" ".join(line[: 2 + at]) for at, line in enumerate(words[8:14])]
    project.write("calibration/lines.txt", "\n".join(starts) + "\n")
    project.write("calibration/held_out.txt", "\n".join(held_out))
    project.write("configs/bert.yaml", CONFIG)
    return project
