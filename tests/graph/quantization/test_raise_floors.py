"""Floors of logarithms in float16, on the real compiler and emulator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper

from pipeline.contracts.scheme import Rule
from pipeline.graph.files.model_file import MODEL, load_graph
from pipeline.model import StageInput
from tests.support.graphs import graph
from tests.support.on_htp import on_chip, without_rewrites

FLOAT = (Rule(nodes=("*",), precision="fp16"),)
CLIP = "g (float[1,64] x) => (float[1,64] y) { c = Clip (x, floor) l = Log (c) y = Mul (l, half) }"
LOUD = np.geomspace(1e-3, 100, 64, dtype=np.float32)[None]


def _model(text: str = CLIP, floor: float = 1e-10) -> ModelProto:
    return graph(text, {"floor": np.float32(floor), "half": np.float32(0.5)})


def _quantized(
    root: Path, model: ModelProto, least: float, rules: Sequence[Rule] = FLOAT, *, quiet: bool = False
) -> StageInput:
    component = without_rewrites(root, model)
    x = np.geomspace(least, 100, 64, dtype=np.float32)[None]
    return component.quantize("all", component.calibrate([{"x": x}], quiet=quiet), rules=rules)


def _floors(quantized: StageInput) -> list[float]:
    constants = load_graph(quantized.folder / MODEL).graph.initializer
    return [float(numpy_helper.to_array(tensor)) for tensor in constants if tensor.name.endswith("_floor")]


@pytest.mark.parametrize("bound", ["Clip (x, floor)", "Clip (x, floor, half)", "Max (floor, x)"])
def test_a_floor_that_nothing_reaches_is_raised(bound: str, tmp_path: Path) -> None:
    quantized = _quantized(tmp_path, _model(CLIP.replace("Clip (x, floor)", bound)), 1e-3)
    assert _floors(quantized) == [2.0**-14]


def test_where_smaller_ones_were_seen_it_is_the_least_that_float16_has(tmp_path: Path) -> None:
    assert _floors(_quantized(tmp_path / "samples", _model(), 1e-6)) == [2.0**-24]
    assert _floors(_quantized(tmp_path / "quiet", _model(), 1e-3, quiet=True)) == [2.0**-24]


@pytest.mark.parametrize(
    ("model", "least", "rules"),
    [
        (_model(floor=1e-6), 1e-6, FLOAT),
        (_model(floor=1e-3), 1e-3, FLOAT),
        (_model(), 1e-3, ()),
        (_model(CLIP.replace("y = Mul (l, half)", "y = Mul (l, c)")), 1e-3, FLOAT),
    ],
    ids=["smaller ones were seen", "a floor that float16 holds", "integers", "read by others"],
)
def test_others_are_left_alone(model: ModelProto, least: float, rules: Sequence[Rule], tmp_path: Path) -> None:
    assert _floors(_quantized(tmp_path, model, least, rules)) == []


@pytest.mark.slow
@pytest.mark.parametrize(("quiet", "silent"), [(False, -14 * np.log(2) / 2), (True, -24 * np.log(2) / 2)])
def test_silence_is_quieter_than_what_was_heard(quiet: bool, silent: float, tmp_path: Path) -> None:
    component = without_rewrites(tmp_path / "net", _model())
    quantized = component.quantize("all", component.calibrate([{"x": LOUD}], quiet=quiet), rules=FLOAT)
    silence = {"x": np.zeros((1, 64), np.float32)}

    raw, raised = (
        on_chip(model, [{"x": LOUD}, silence], tmp_path / name).outputs
        for name, model in (("raw", component.rewrite["all"]), ("raised", quantized))
    )

    np.testing.assert_allclose(raised[0]["y"], np.log(LOUD) / 2, atol=0.01)
    assert raised[1]["y"].max() < raised[0]["y"].min() - 1
    np.testing.assert_allclose(raised[1]["y"], silent, atol=0.02)
    assert raw[1]["y"].max() > raw[0]["y"].min() - 1, "HTP holds this floor now: drop raise_floors"
