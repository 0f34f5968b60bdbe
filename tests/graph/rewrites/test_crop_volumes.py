from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.convolutions import crop_volumes
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites, without_rewrites

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(1, 4, 3, 4, 5)).astype(np.float32)
CONSTANTS = {
    "w": RANDOM.normal(size=(4, 4, 3, 3, 3)).astype(np.float32),
    "b": RANDOM.normal(size=4).astype(np.float32),
}
CASES = {
    "none in depth": "pads = [0, 1, 1, 0, 1, 1], strides = [2, 2, 2], output_padding = [0, 1, 1]",
    "depth alone": "pads = [1, 0, 0, 1, 0, 0]",
    "other ends": "pads = [0, 1, 2, 1, 0, 1], strides = [2, 1, 2]",
}


def build(attributes: str) -> ModelProto:
    text = f"a = Relu (x)  y = ConvTranspose <{attributes}> (a, w, b)"
    return graph(f"g (float[1,4,3,4,5] x) => (float[n,c,d,h,v] y) {{ {text} }}", CONSTANTS)


@pytest.mark.parametrize("case", CASES)
def test_the_edges_are_cut_off_behind_it(case: str, tmp_path: Path) -> None:
    model = build(CASES[case])
    before = outputs(model, {"x": X})["y"]
    assert apply_all(model, tmp_path)["crop_volumes"] == 1
    assert operators(model) == {"Relu": 1, "ConvTranspose": 1, "Slice": 1}
    after = outputs(model, {"x": X})["y"]
    assert after.shape == before.shape
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)
    assert crop_volumes.apply(model, tmp_path) == 0


@pytest.mark.parametrize("attributes", ["pads = [1, 1, 1, 1, 1, 1]", "strides = [2, 2, 2]", 'auto_pad = "SAME_UPPER"'])
def test_left_alone(attributes: str, tmp_path: Path) -> None:
    assert crop_volumes.apply(build(attributes), tmp_path) == 0


def test_planes_are_left_alone(tmp_path: Path) -> None:
    text = "g (float[1,4,4,5] x) => (float[n,c,h,v] y) { y = ConvTranspose <pads = [0, 1, 0, 1]> (x, w) }"
    model = graph(text, {"w": CONSTANTS["w"][..., 0]})
    assert crop_volumes.apply(model, tmp_path) == 0


@pytest.mark.parametrize("rounded", [False, True])
def test_the_chip_cuts_what_it_should(rounded: bool, tmp_path: Path) -> None:
    calls = [{"x": X}]
    component = with_rewrites(tmp_path / "model", build(CASES["none in depth"]))
    made = component.quantize("all", component.calibrate(calls)) if rounded else component.rewrite["all"]
    chip = on_chip(made, calls, tmp_path / "chip")
    assert chip.cpu_ops == set()
    assert sqnr_db(on_cpu(component.ingest, calls), chip.outputs, "y") > 40


def test_without_it_the_chip_computes_other_numbers(tmp_path: Path) -> None:
    calls = [{"x": X}]
    component = without_rewrites(tmp_path / "model", build(CASES["none in depth"]))
    chip = on_chip(component.rewrite["all"], calls, tmp_path / "chip")
    found = sqnr_db(on_cpu(component.ingest, calls), chip.outputs, "y")
    assert found < 10, "HTP takes unequal pads now: drop crop_volumes"
