"""A net with one layer that 8 bits are bad for, and running the precision stage on components of tests."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.contracts.target import HtpTarget
from pipeline.model import Json, StageInput
from tests.support.graphs import graph
from tests.support.stage_runs import X_ELITE, Component, run_stage

SENSITIVE = ("MatMul_4", "Relu_5", "MatMul_6", "Relu_7")
"""The nodes of :func:`outlier` that make and read the value with the large column."""


def outlier(size: float = 48.0) -> ModelProto:
    """Layers of MatMul and Relu: in the middle, one column of a value is `size` times the others, and counts no more.

    ``x`` float32 [batch, frames, 16] -> ``y`` float32 [batch, frames, 16].
    """
    numbers = np.random.default_rng(0)

    def weight(inner: int, outer: int) -> NDArray[Any]:
        return np.asarray(numbers.normal(size=(inner, outer)) / np.sqrt(inner), np.float32)

    up, down = weight(16, 32), weight(32, 16)
    up[:, 5] *= size
    down[5] /= size
    return graph(
        """outlier (float[batch,frames,16] x) => (float[batch,frames,16] y) {
            a = MatMul (x, w0)
            b = Relu (a)
            c = MatMul (b, w1)
            d = Relu (c)
            e = MatMul (d, up)
            f = Relu (e)
            g = MatMul (f, down)
            h = Relu (g)
            i = MatMul (h, w2)
            j = Relu (i)
            y = MatMul (j, w3)
        }""",
        {
            "w0": weight(16, 16),
            "w1": weight(16, 16),
            "up": up,
            "down": down,
            "w2": weight(16, 16),
            "w3": weight(16, 16),
        },
    )


def frames(count: int) -> list[dict[str, NDArray[Any]]]:
    """Inputs of :func:`outlier`, 16 frames each."""
    shape = (1, 16, 16)
    return [{"x": np.random.default_rng(seed).normal(size=shape).astype(np.float32)} for seed in range(count)]


def search(
    component: Component,
    samples: StageInput,
    ranges: StageInput,
    root: Path,
    *,
    target_db: float,
    fp16: bool = True,
    max_trials: int = 40,
    max_emulations: int = 6,
    targets: tuple[HtpTarget, ...] = (X_ELITE,),
) -> StageInput:
    """What the precision stage finds for a component, with its output in `root`."""
    listed: list[Json] = [asdict(target) for target in targets]
    params: dict[str, Json] = {
        "component": "net",
        "buckets": {name: dict(axes) for name, axes in component.buckets.items()},
        "padding": {},
        "part": "all",
        "total_db": target_db,
        "quantization_db": target_db,
        "compile_db": target_db,
        "max_cpu_nodes": 0,
        "max_partitions": 1,
        "targets": listed,
        "fp16": fp16,
        "prefer": "size",
        "max_trials": max_trials,
        "max_emulations": max_emulations,
        "method": "minmax",
    }
    rewritten = {f"rewrite/{name}": given for name, given in component.rewrite.items()}
    shaped = {f"shape/{name}": given for name, given in component.shape.items()}
    gathered = {key: params[key] for key in ("component", "buckets", "padding", "part")}
    given = {"ingest": component.ingest, "samples": samples, **rewritten}
    inputs = {
        **given,
        **shaped,
        "calibrate": ranges,
        "correlate": run_stage("correlate", root / "correlate", gathered, given),
    }
    return run_stage("precision", root / "precision", params, inputs)
