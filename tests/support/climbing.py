"""Projects whose models w8a16 is too coarse for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tests.support import net_project
from tests.support.graphs import graph
from tests.support.project import Project

CONFIG = f"{net_project.CONFIG}buckets: {{frames: [16]}}\n"
COARSE = "g (float[1,8,frames] x) => (float[1,8,frames] y) { y = Conv (x, w) }"


def project_of(root: Path, model: onnx.ModelProto, config: str, *, twins: bool = False) -> Project:
    numbers = np.random.default_rng(1)
    samples = []
    for _ in range(8):
        arrays: dict[str, Any] = {}
        for value in model.graph.input:
            shape = [dim.dim_value or 16 for dim in value.type.tensor_type.shape.dim]
            arrays[value.name] = numbers.standard_normal([1, *shape[1:]]).astype(np.float32)
            if twins:
                arrays[value.name][:, 1] = arrays[value.name][:, 0]
        samples.append(arrays)
    return net_project.create(root, model, samples, config)


def coarse(root: Path, config: str = CONFIG, largest: float = 45) -> Project:
    """A convolution with enormous weights for two equal channels, one the other's opposite: 8 bits are too few for the
    others, however the channels' weights are rounded or their scale is chosen.
    """
    numbers = np.random.default_rng(0)
    weight = numbers.standard_normal((8, 8, 1)).astype(np.float32)
    weight[:, 0], weight[:, 1] = largest, -largest
    return project_of(root, graph(COARSE, {"w": weight}), config, twins=True)
