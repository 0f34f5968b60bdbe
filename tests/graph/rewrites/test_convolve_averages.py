from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.pools import convolve_averages
from tests.conformance.batches import run_batch
from tests.conformance.cases import single
from tests.support.graphs import operators, outputs

X = np.random.default_rng(0).normal(size=(1, 3, 9, 7, 7)).astype(np.float32)

PADDED: dict[str, dict[str, Any]] = {
    "counted": {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 1, 1, 1], "count_include_pad": 1},
    "as in Inception": {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [1, 1, 1, 1]},
    "on one side": {"kernel_shape": [3, 3], "pads": [0, 0, 1, 1]},
    "more than is read": {"kernel_shape": [3, 3], "strides": [4, 4], "pads": [1, 1, 1, 1], "count_include_pad": 1},
    "over the end": {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1},
    "over the end, padded": {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1},
    "over the end, counted": {
        "kernel_shape": [3, 2], "strides": [3, 2], "pads": [1, 0, 1, 0], "ceil_mode": 1, "count_include_pad": 1,
    },
    "same upper": {"kernel_shape": [4, 4], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    "same lower, counted": {
        "kernel_shape": [4, 2], "strides": [2, 1], "auto_pad": "SAME_LOWER", "count_include_pad": 1,
    },
    "1d, counted": {"kernel_shape": [4], "pads": [1, 2], "count_include_pad": 1},
    "3d": {"kernel_shape": [2, 3, 2], "strides": [2, 2, 2], "pads": [1, 1, 0, 1, 1, 1]},
    "3d, counted": {"kernel_shape": [3, 3, 3], "pads": [1] * 6, "count_include_pad": 1},
    "dilated": {"kernel_shape": [3, 3], "dilations": [2, 2]},
    "dilated, padded": {"kernel_shape": [3, 2], "dilations": [2, 3], "pads": [1, 1, 2, 1]},
    "dilated, with strides, over the end": {
        "kernel_shape": [2, 3], "dilations": [3, 2], "strides": [2, 3], "pads": [1, 2, 0, 2], "ceil_mode": 1,
    },
}  # fmt: skip
LEFT_ALONE: dict[str, dict[str, Any]] = {
    "without padding": {"kernel_shape": [3, 3], "strides": [2, 2]},
    "a ceil of what fits": {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
    "valid": {"kernel_shape": [3, 3], "auto_pad": "VALID"},
}


def build(how: dict[str, Any]) -> tuple[ModelProto, dict[str, NDArray[Any]]]:
    kernel = how["kernel_shape"]
    return single("AveragePool", [X.reshape(*X.shape[: 2 + len(kernel)], -1)[..., 0]], **how)


@pytest.mark.parametrize("name", PADDED)
def test_padded_pools_are_convolutions(name: str, tmp_path: Path) -> None:
    model, feeds = build(PADDED[name])
    before = outputs(model, feeds)["y0"]

    assert apply_all(model, tmp_path)["convolve_averages"] == 1

    assert operators(model)["Conv"] == 1
    assert operators(model)["AveragePool"] == 0
    np.testing.assert_allclose(outputs(model, feeds)["y0"], before, rtol=1e-5, atol=1e-6)
    assert convolve_averages.apply(model, tmp_path) == 0


def test_a_mean_of_all_that_is_padded_needs_no_factor(tmp_path: Path) -> None:
    model, _ = build(PADDED["counted"])
    convolve_averages.apply(model, tmp_path)
    assert operators(model) == {"Conv": 1}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_others_are_left_alone(name: str, tmp_path: Path) -> None:
    assert convolve_averages.apply(build(LEFT_ALONE[name])[0], tmp_path) == 0


@pytest.mark.slow
def test_the_chip_loses_parts_of_padded_windows(tmp_path: Path) -> None:
    raw = [build(how) for how in (*PADDED.values(), *LEFT_ALONE.values())]
    right = [outputs(model, feeds)["y0"] for model, feeds in raw]
    loud, feed = raw[0]
    as_is = run_batch([loud], [feed], tmp_path / "raw")
    assert np.abs(as_is[0].outputs[0] - right[0]).max() > 0.1, "QNN pools rightly now: drop convolve_averages"
    for model, _ in raw:
        apply_all(model, tmp_path)
    found = run_batch([model for model, _ in raw], [feeds for _, feeds in raw], tmp_path / "cured")
    for on_chip, expected in zip(found, right, strict=True):
        assert not on_chip.on_cpu
        np.testing.assert_allclose(on_chip.outputs[0], expected, atol=5e-3)
