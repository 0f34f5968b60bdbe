from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.pools import gather_windows
from tests.conformance.batches import run_batch
from tests.conformance.cases import single
from tests.support.graphs import operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites

# All below zero, so that a zero of the padding would be the largest.
X = -np.random.default_rng(0).uniform(1, 3, size=(2, 3, 9, 11, 7)).astype(np.float32)

POOLS: dict[str, dict[str, Any]] = {
    "plain": {"kernel_shape": [3, 3], "dilations": [2, 2]},
    "one axis": {"kernel_shape": [3, 2], "dilations": [3, 1], "strides": [1, 2], "pads": [0, 1, 0, 0]},
    "the other axis": {"kernel_shape": [2, 3], "dilations": [1, 3], "strides": [2, 1], "ceil_mode": 1},
    "padded": {"kernel_shape": [3, 3], "dilations": [2, 3], "pads": [2, 2, 1, 2]},
    "strides": {"kernel_shape": [3, 2], "dilations": [2, 4], "strides": [2, 3], "pads": [1, 1, 1, 0]},
    "over the end": {"kernel_shape": [3, 3], "dilations": [2, 2], "strides": [3, 2], "ceil_mode": 1},
    "over the end, padded": {
        "kernel_shape": [3, 3], "dilations": [2, 3], "strides": [2, 3], "ceil_mode": 1, "pads": [1, 2, 1, 2],
    },
    "valid": {"kernel_shape": [3, 2], "dilations": [2, 3], "auto_pad": "VALID"},
    "1d": {"kernel_shape": [3], "dilations": [4], "pads": [2, 1]},
    "3d": {"kernel_shape": [2, 3, 2], "dilations": [3, 2, 1], "strides": [1, 2, 1], "pads": [1, 0, 1, 0, 1, 0]},
}  # fmt: skip
LEFT_ALONE: dict[str, dict[str, Any]] = {
    "without dilations": {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    "same upper": {"kernel_shape": [3, 2], "dilations": [2, 3], "auto_pad": "SAME_UPPER"},
    "a window of nothing": {"kernel_shape": [2, 3], "dilations": [1, 3], "strides": [3, 1], "ceil_mode": 1},
    "a dilation of one element": {"kernel_shape": [3, 3], "dilations": [1, 1]},
}


def build(how: dict[str, Any]) -> tuple[ModelProto, dict[str, NDArray[Any]]]:
    return single("MaxPool", [X.reshape(*X.shape[: 2 + len(how["kernel_shape"])], -1)[..., 0]], **how)


@pytest.mark.parametrize("name", POOLS)
def test_the_largest_stays_the_same(name: str, tmp_path: Path) -> None:
    model, feeds = build(POOLS[name])
    before = outputs(model, feeds)["y0"]

    applied = apply_all(model, tmp_path)

    assert applied["gather_windows"] == (2 if name == "3d" else 1)
    assert operators(model)["Gather"] >= 1
    np.testing.assert_array_equal(outputs(model, feeds)["y0"], before)
    assert gather_windows.apply(model, tmp_path) == 0


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_others_are_left_alone(name: str, tmp_path: Path) -> None:
    assert gather_windows.apply(build(LEFT_ALONE[name])[0], tmp_path) == 0


def test_the_chip_takes_them(tmp_path: Path) -> None:
    planes = [build(how) for name, how in POOLS.items() if name != "3d"]
    before = run_batch([planes[0][0]], [planes[0][1]], tmp_path / "raw")
    assert before[0].on_cpu or before[0].refused, "QNN takes dilations now: drop gather_windows"
    cured = [build(how) for how in POOLS.values()]
    truth = [outputs(model, feeds)["y0"] for model, feeds in cured]
    for model, _ in cured:
        apply_all(model, tmp_path)
    found = run_batch([model for model, _ in cured], [feeds for _, feeds in cured], tmp_path / "cured")
    for name, expected, made in zip(POOLS, truth, found, strict=True):
        assert not made.refused, (name, made.refused)
        assert not made.on_cpu, (name, made.on_cpu)
        np.testing.assert_allclose(made.outputs[0], expected, atol=2e-3, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("activations", ["uint16", "uint8"])
@pytest.mark.parametrize("name", ["padded", "strides", "over the end, padded", "1d"])
def test_integers_are_right_on_the_chip(name: str, activations: str, tmp_path: Path) -> None:
    model, feeds = build(POOLS[name])
    component = with_rewrites(tmp_path / "model", model)
    quantized = component.quantize("all", component.calibrate([feeds]), activations=activations)

    chip = on_chip(quantized, [feeds], tmp_path / "chip")

    assert chip.cpu_ops == set()
    assert sqnr_db(on_cpu(quantized, [feeds]), chip.outputs, "y0") > (80 if activations == "uint16" else 60)
