"""A project of one model, `net`, whose samples are arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike

from tests.support.project import Project

CONFIG = """\
source: {path: ../models/net}
components:
  net: {file: model.onnx}
calibration: {reader: npz, folder: calibration/samples}
targets: [sm8650]
"""


def create(
    root: Path, model: onnx.ModelProto, samples: Iterable[Mapping[str, ArrayLike]], config: str = CONFIG
) -> Project:
    """The project, not built yet, and its store, in `root`."""
    project = Project.create(root / "project", root / "store")
    folder = project.root / "models" / "net"
    folder.mkdir(parents=True)
    onnx.save(model, folder / "model.onnx")
    (project.root / "calibration" / "samples").mkdir()
    for number, arrays in enumerate(samples):
        given: dict[str, Any] = {**arrays}
        np.savez(project.root / "calibration" / "samples" / f"{number:02}.npz", **given)
    project.write("configs/net.yaml", config)
    return project
