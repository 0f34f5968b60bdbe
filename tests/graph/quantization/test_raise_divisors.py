"""Floors of divisors in integers, on the real compiler and emulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

from pipeline.contracts.scheme import Rule
from pipeline.graph.files.model_file import MODEL, load_graph
from pipeline.model import StageInput
from tests.support.graphs import graph
from tests.support.on_htp import on_chip, without_rewrites

ROWS = np.random.default_rng(3).standard_normal((4, 32)).astype(np.float32)
NORM = """g (float[4,32] x) => (float[4,32] y) {
    norm = ReduceL2 <axes=[-1], keepdims=1> (x)
    bound = Max (norm, floor) y = Div (x, bound)
}"""
PEAK = """g (float[4,32] x) => (float[4,32] y) {
    size = Abs (x) peak = ReduceMax <axes=[-1], keepdims=1> (size) bound = Add (peak, floor)
    wide = Expand (bound, shape) y = Div (x, wide)
}"""
ROOT = """g (float[4,32] x) => (float[4,32] y) {
    square = Mul (x, x) sum = ReduceSum <keepdims=1> (square, last) bound = Add (sum, floor)
    norm = Sqrt (bound) y = Div (x, norm)
}"""
FORMS = {"max": NORM, "clip": NORM.replace("Max (norm", "Clip (norm"), "added": PEAK, "below a root": ROOT}


def _model(text: str, floor: float = 1e-12) -> ModelProto:
    constants: dict[str, NDArray[Any]] = {
        "floor": np.array(floor, np.float32),
        "last": np.array([-1], np.int64),
        "shape": np.array([4, 32], np.int64),
    }
    return graph(text, {name: each for name, each in constants.items() if name in text})


def _quantized(root: Path, model: ModelProto, *rules: Rule) -> StageInput:
    component = without_rewrites(root, model)
    return component.quantize("all", component.calibrate([{"x": ROWS}, {"x": ROWS[::-1] * 2}]), rules=rules)


def _floors(quantized: StageInput) -> list[float]:
    constants = load_graph(quantized.folder / MODEL).graph.initializer
    return [float(numpy_helper.to_array(each)) for each in constants if each.name.startswith("bound_floor")]


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_a_floor_below_a_step_is_raised(text: str, tmp_path: Path) -> None:
    assert len(_floors(_quantized(tmp_path, _model(text)))) > 0


@pytest.mark.parametrize(
    ("model", "rules"),
    [
        (_model(NORM, floor=0.1), ()),
        (_model(NORM, floor=0.0), ()),
        (_model(NORM), [Rule(nodes=("*",), precision="fp16")]),
        (_model(NORM.replace("y = Div (x, bound)", "z = Div (x, bound) y = Add (z, bound)")), ()),
    ],
    ids=["a floor of many steps", "no floor", "float", "read by others"],
)
def test_others_are_left_alone(model: ModelProto, rules: list[Rule], tmp_path: Path) -> None:
    assert _floors(_quantized(tmp_path, model, *rules)) == []


@pytest.mark.slow
@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_silence_stays_silent(text: str, tmp_path: Path) -> None:
    quantized = _quantized(tmp_path / "net", _model(text))
    quiet = {"x": ROWS * np.array([[1], [0], [1], [0]], np.float32)}

    loud, silent = (made["y"] for made in on_chip(quantized, [{"x": ROWS}, quiet], tmp_path / "chip").outputs)

    assert np.abs(silent[[1, 3]]).max() == 0
    np.testing.assert_array_equal(silent[[0, 2]], loud[[0, 2]])
    assert np.abs(loud).max() > 0.3
