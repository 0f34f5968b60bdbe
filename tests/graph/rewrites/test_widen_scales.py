from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.products import widen_scales
from tests.conformance.batches import run_batch
from tests.support.graphs import graph, outputs

X = np.random.default_rng(0).normal(size=(1, 12, 8)).astype(np.float32)
ROW = np.linspace(-0.5, 0.5, 8, dtype=np.float32)
COLUMN = np.linspace(-0.5, 0.5, 12, dtype=np.float32)[:, None]
SCALE = np.float32(0.35)
TEXT = "g (float[1,12,8] x) => (float[1,12,8] y) { h = Add (x, c) y = Mul (h, s) }"


def _factors(model: ModelProto) -> list[tuple[int, ...]]:
    return [
        numpy_helper.to_array(tensor).shape for tensor in model.graph.initializer if tensor.name.endswith("_factors")
    ]


@pytest.mark.parametrize("constant", [ROW, COLUMN], ids=["row", "column"])
@pytest.mark.parametrize("product", ["Mul (h, s)", "Mul (s, h)"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)], ids=str)
def test_the_factor_becomes_a_row(constant: np.ndarray, product: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    model = graph(TEXT.replace("Mul (h, s)", product), {"c": constant, "s": SCALE.reshape(shape)})
    before = outputs(model, {"x": X})["y"]

    assert apply_all(model, tmp_path)["widen_scales"] == 1

    assert _factors(model) == [(8,)]
    np.testing.assert_array_equal(outputs(model, {"x": X})["y"], before)
    assert widen_scales.apply(model, tmp_path) == 0


def test_through_a_reshape(tmp_path: Path) -> None:
    model = graph(
        "g (float[1,12,8] x) => (float[1,12,2,4] y) { h = Add (x, c) r = Reshape (h, heads) y = Mul (r, s) }",
        {"c": ROW, "s": SCALE, "heads": np.array([1, 12, 2, 4])},
    )
    assert widen_scales.apply(model, tmp_path) == 1
    assert _factors(model) == [(4,)]


def test_a_last_axis_of_one_gets_them_all(tmp_path: Path) -> None:
    model = graph(
        "g (float[1,12,1] x) => (float[1,12,1] y) { h = Add (x, c) y = Mul (h, s) }", {"c": COLUMN, "s": SCALE}
    )
    assert widen_scales.apply(model, tmp_path) == 1
    assert _factors(model) == [(1, 12, 1)]


@pytest.mark.parametrize(
    ("text", "constant"),
    [
        (TEXT, np.float32(0.5)),
        (TEXT.replace("Add (x, c)", "Sub (x, c)"), ROW),
        (TEXT.replace("Mul (h, s)", "Div (h, s)"), ROW),
        (TEXT.replace("y = Mul (h, s)", "a = Mul (h, s) y = Sub (a, h)"), ROW),
        (TEXT.replace("h = Add (x, c)", "a = Mul (x, c) h = Add (x, a)"), ROW),
        (TEXT.replace("Mul (h, s)", "Mul (h, c)"), ROW),
    ],
    ids=["a number added", "a difference", "a quotient", "read twice", "a computed summand", "by a row"],
)
def test_what_is_right_is_left_alone(text: str, constant: np.ndarray, tmp_path: Path) -> None:
    model = graph(text, {"c": constant, "s": SCALE})
    assert widen_scales.apply(model, tmp_path) == 0


@pytest.mark.slow
def test_the_chip_adds_the_first_element_to_all(tmp_path: Path) -> None:
    texts = [
        TEXT,
        TEXT.replace("h = Add (x, c)", "m = MatMul (x, w) h = Add (m, c)"),
        TEXT.replace("Mul (h, s)", "Mul (s, h)"),
    ]
    weight = np.random.default_rng(1).normal(size=(8, 8)).astype(np.float32)
    raw = [graph(text, {"c": ROW, "s": SCALE, "w": weight}) for text in texts]
    cured = [graph(text, {"c": ROW, "s": SCALE, "w": weight}) for text in texts]
    for model in cured:
        assert widen_scales.apply(model, tmp_path) == 1

    found = run_batch([*raw, *cured], [{"x": X}] * 6, tmp_path / "work")

    for model, wrong, right in zip(raw[:2], found[:2], found[3:5], strict=True):
        truth = outputs(model, {"x": X})["y"]
        np.testing.assert_allclose(right.outputs[0], truth, atol=0.005)
        assert np.abs(wrong.outputs[0] - truth).max() > 0.1, "QNN adds rightly now: drop widen_scales"
    np.testing.assert_allclose(found[5].outputs[0], outputs(raw[2], {"x": X})["y"], atol=0.005)
