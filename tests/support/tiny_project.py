"""A project whose model is two layers: everything that a build does, in as little time as it takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.support.project import Project
from tests.support.tiny_models import float_model, sample

NAME = "tiny"
CONFIG = f"configs/{NAME}.yaml"
TARGETS = ("snapdragon-x-elite", "sm8650")
BUCKETS = (8, 16)


def create(
    root: Path, store: Path, *, buckets: Sequence[int] = BUCKETS, targets: Sequence[str] = TARGETS, between: str = ""
) -> Project:
    """A project that was not built yet; `between` is a unary operator to put into the model."""
    project = Project.create(root, store)
    float_model(root / "model", between=between, sequence="sequence")
    for folder, seeds in (("calibration", range(4)), ("held_out", range(4, 6))):
        (root / "calibration" / folder).mkdir()
        for seed in seeds:
            np.save(root / "calibration" / folder / f"{seed}.npy", sample(3 + seed, seed))
    project.write(
        CONFIG,
        f"""\
source: {{path: ../model}}
components:
  net: {{file: model.onnx}}
buckets: {{sequence: [{", ".join(map(str, buckets))}]}}
calibration: {{reader: npz, folder: calibration/calibration}}
verification: {{samples: {{reader: npz, folder: calibration/held_out}}}}
targets: [{", ".join(targets)}]
""",
    )
    return project
