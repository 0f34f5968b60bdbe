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
from pipeline.graph.ir.index import GraphIndex
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


def _model(text: str, floor: float = 1e-12, dims: tuple[int, ...] = ()) -> ModelProto:
    constants: dict[str, NDArray[Any]] = {
        "floor": np.full(dims, floor, np.float32),
        "last": np.array([-1], np.int64),
        "one": np.array([1], np.int64),
        "shape": np.array([4, 32], np.int64),
    }
    return graph(text, {name: each for name, each in constants.items() if name in text})


def _quantized(root: Path, model: ModelProto, *rules: Rule) -> StageInput:
    component = without_rewrites(root, model)
    return component.quantize("all", component.calibrate([{"x": ROWS}, {"x": ROWS[::-1] * 2}]), rules=rules)


def _floors(quantized: StageInput) -> list[NDArray[np.float64]]:
    """What the raised floors are, as the QDQ model has them."""
    index = GraphIndex(load_graph(quantized.folder / MODEL), quantized.folder)
    raised = [name for name in index.initializers if name.startswith("bound_floor")]
    integers = [name for name in raised if not name.endswith(("_scale", "_zero_point"))]
    return [_real(index, name) for name in integers]


def _real(index: GraphIndex, name: str) -> NDArray[np.float64]:
    for node in index.readers[name]:
        if node.op_type == "DequantizeLinear":
            integer, scale, zero = (numpy_helper.to_array(index.initializers[each]) for each in node.input)
            return np.asarray((integer.astype(np.float64) - zero) * scale)
    return np.asarray(numpy_helper.to_array(index.initializers[name]), np.float64)


_ROOM = 1.25
"""By how much ranges of two samples are wider than what was seen."""
LONGEST, LARGEST = 2 * float(np.linalg.norm(ROWS, axis=-1).max()), 2 * float(np.abs(ROWS).max())


@pytest.mark.parametrize(
    ("form", "least"),
    [
        ("max", LONGEST / 65535), ("clip", LONGEST / 65535), ("added", LARGEST / 65535),
        ("below a root", LONGEST**2 / 65535),
    ],
)  # fmt: skip
def test_a_floor_below_a_step_is_raised_to_one(form: str, least: float, tmp_path: Path) -> None:
    (floor,) = _floors(_quantized(tmp_path, _model(FORMS[form])))
    np.testing.assert_allclose(floor, least * _ROOM, rtol=0.01)


def test_it_keeps_its_dims(tmp_path: Path) -> None:
    (floor,) = _floors(_quantized(tmp_path, _model(NORM, dims=(1, 1))))
    assert floor.shape == (1, 1)


def test_a_reciprocal_divides_too(tmp_path: Path) -> None:
    text = NORM.replace("y = Div (x, bound)", "over = Reciprocal (bound) y = Mul (x, over)")
    assert len(_floors(_quantized(tmp_path, _model(text)))) == 1


def test_a_floor_in_float_is_one_of_what_divides_in_integers(tmp_path: Path) -> None:
    rule = Rule(nodes=("bound",), precision="fp16")
    model = _model(NORM)
    next(node for node in model.graph.node if node.op_type == "Max").name = "bound"
    (floor,) = _floors(_quantized(tmp_path, model, rule))
    np.testing.assert_allclose(floor, LONGEST / 65535 * _ROOM, rtol=0.01)


SIGNED = "g (float[4,32] x) => (float[4,32] y) { bound = Add (x, floor) y = Div (x, bound) }"
WHOLE = """g (float[4,32] x, int64[4,1] n) => (float[4,32] y) {
    more = Add (n, one) part = Div (n, more) real = Cast <to = 1> (part) y = Add (x, real)
}"""


@pytest.mark.parametrize(
    ("model", "rules"),
    [
        (_model(NORM, floor=0.1), ()),
        (_model(NORM, floor=0.0), ()),
        (_model(NORM), [Rule(nodes=("*",), precision="fp16")]),
        (_model(NORM.replace("y = Div (x, bound)", "z = Div (x, bound) y = Add (z, bound)")), ()),
        (_model(SIGNED), ()),
    ],
    ids=["a floor of many steps", "no floor", "float", "read by others", "a sum of either sign"],
)
def test_others_are_left_alone(model: ModelProto, rules: list[Rule], tmp_path: Path) -> None:
    assert _floors(_quantized(tmp_path, model, *rules)) == []


def test_a_division_of_whole_numbers_has_no_steps(tmp_path: Path) -> None:
    component = without_rewrites(tmp_path, _model(WHOLE))
    feed: dict[str, NDArray[Any]] = {"x": ROWS, "n": np.arange(4, dtype=np.int64)[:, None]}
    assert _floors(component.quantize("all", component.calibrate([feed]))) == []


@pytest.mark.slow
@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_silence_stays_silent(text: str, tmp_path: Path) -> None:
    quantized = _quantized(tmp_path / "net", _model(text))
    quiet = {"x": ROWS * np.array([[1], [0], [1], [0]], np.float32)}

    loud, silent = (made["y"] for made in on_chip(quantized, [{"x": ROWS}, quiet], tmp_path / "chip").outputs)

    assert np.abs(silent[[1, 3]]).max() == 0
    np.testing.assert_array_equal(silent[[0, 2]], loud[[0, 2]])
    assert np.abs(loud).max() > 0.3
