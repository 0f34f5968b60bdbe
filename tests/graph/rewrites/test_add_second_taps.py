from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from pipeline.errors import CompileError
from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.convolutions import add_second_taps
from tests.support.graphs import graph, outputs
from tests.support.on_htp import OnChip, on_chip, on_cpu, sqnr_db, with_rewrites, without_rewrites
from tests.support.stage_runs import Component

RANDOM = np.random.default_rng(0)


def build(attributes: str, weight: tuple[int, ...] = (64, 1, 1, 1), channels: int = 64) -> ModelProto:
    dims = ",".join(["1", str(channels), *["8"] * (len(weight) - 2)])
    constants = {
        "w": np.linspace(0.001, 2, math.prod(weight), dtype=np.float32).reshape(weight),
        "b": np.linspace(-1, 1, weight[0], dtype=np.float32),
    }
    text = f"g (float[{dims}] x) => (float[{',dn' * len(weight)}] y) {{ y = Conv <{attributes}> (x, w, b) }}"
    return graph(text.replace("[,", "["), constants)


@pytest.mark.parametrize(
    ("attributes", "weight"),
    [
        ("group = 64", (64, 1, 1, 1)),
        ("group = 64, kernel_shape = [1, 1], pads = [0, 0, 0, 0], dilations = [2, 2]", (64, 1, 1, 1)),
        ('group = 64, auto_pad = "VALID"', (64, 1, 1, 1)),
    ],
)
def test_the_second_tap_adds_nothing(attributes: str, weight: tuple[int, ...], tmp_path: Path) -> None:
    model = build(attributes, weight)
    x = {"x": RANDOM.normal(size=(1, 64, *[8] * (len(weight) - 2))).astype(np.float32)}
    before = outputs(model, x)["y"]
    assert apply_all(model, tmp_path)["add_second_taps"] == 1
    np.testing.assert_allclose(outputs(model, x)["y"], before, rtol=1e-6)
    assert add_second_taps.apply(model, tmp_path) == 0


@pytest.mark.parametrize(
    ("attributes", "weight"),
    [
        ("group = 64, strides = [2, 2]", (64, 1, 1, 1)),
        ("group = 64, pads = [1, 0, 0, 0]", (64, 1, 1, 1)),
        ("group = 64", (128, 1, 1, 1)),
        ("group = 64", (64, 1, 1, 3)),
        ("group = 32", (64, 2, 1, 1)),
        ("group = 1", (64, 64, 1, 1)),
        ("group = 64", (64, 1, 1)),
    ],
    ids=["strides", "padding", "two a channel", "three taps", "groups of two", "all channels", "rows"],
)
def test_others_are_left_alone(attributes: str, weight: tuple[int, ...], tmp_path: Path) -> None:
    assert add_second_taps.apply(build(attributes, weight), tmp_path) == 0


@pytest.mark.slow
def test_qnn_compiles_two_taps_and_not_one(tmp_path: Path) -> None:
    feeds = [{"x": RANDOM.normal(size=(1, 64, 8, 8)).astype(np.float32)} for _ in range(3)]

    def chip(component: Component) -> OnChip:
        qdq = component.quantize("all", component.calibrate(feeds), wide_products=True)
        return on_chip(qdq, feeds[:1], component.rewrite["all"].folder.parent / "chip")

    with pytest.raises(CompileError):
        chip(without_rewrites(tmp_path / "raw", build("group = 64")))
    component = with_rewrites(tmp_path / "cured", build("group = 64"))
    found = chip(component)
    assert not found.cpu_ops
    assert sqnr_db(on_cpu(component.shape["all"], feeds[:1]), found.outputs, "y") > 40
