from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from pipeline.graph.rewrites import apply_all, round_norm_scales
from tests.support.graphs import graph, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites, without_rewrites

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(1, 6, 32)).astype(np.float32)
SCALE = np.exp(RANDOM.normal(size=32)).astype(np.float32) / 8
CONSTANTS: dict[str, NDArray[Any]] = {
    "g": SCALE,
    "b": RANDOM.normal(size=32).astype(np.float32),
    "signed": SCALE * np.where(np.arange(32) % 3, 1, -1).astype(np.float32),
    "dead": np.where(np.arange(32) == 5, 0, SCALE).astype(np.float32),
    "below": np.where(np.arange(32) == 5, -1e-6, SCALE).astype(np.float32),
    "faint": np.where(np.arange(32) == 5, 1e-6, SCALE).astype(np.float32),
    "zeros": np.zeros(32, np.float32),
    "whole": np.array([*range(1, 32), 255], np.float32),
    "one": np.array(SCALE[:1]),
    "w": RANDOM.normal(size=(32, 6)).astype(np.float32),
    "v": RANDOM.normal(size=(32, 6)).astype(np.float32),
    "t": RANDOM.normal(size=(6, 32)).astype(np.float32),
    "c": RANDOM.normal(size=6).astype(np.float32),
    "rows": np.array([6, 32]),
    "windows": np.array([2, 3, 32]),
    "halves": np.array([1, 12, 16]),
    "pairs": np.array([6, 2, 16]),
    "first": np.array([0]),
    "u": RANDOM.normal(size=(16, 6)).astype(np.float32),
    "s": RANDOM.normal(size=(6, 6)).astype(np.float32),
    "d": RANDOM.normal(size=32).astype(np.float32),
    "square": RANDOM.normal(size=(32, 32)).astype(np.float32),
    "last": np.array([2]),
    "endless": np.where(np.arange(32) == 5, np.inf, SCALE).astype(np.float32),
    "huge": np.where(np.arange(32) == 5, -np.inf, SCALE).astype(np.float32),
    "unknown": np.where(np.arange(32) == 5, np.nan, SCALE).astype(np.float32),
    "m": RANDOM.normal(size=(1, 32, 6)).astype(np.float32),
}
MOVED = {
    "MatMul": "n = LayerNormalization (x, g, b)  y = MatMul (n, w)",
    "no bias": "n = LayerNormalization (x, g)  y = MatMul (n, w)",
    "negative scales": "n = LayerNormalization (x, signed, b)  y = MatMul (n, w)",
    "a scale of zero": "n = LayerNormalization (x, dead, b)  y = MatMul (n, w)",
    "a scale of nearly zero": "n = LayerNormalization (x, faint, b)  y = MatMul (n, w)",
    "a scale right below zero": "n = LayerNormalization (x, below, b)  y = MatMul (n, w)",
    "two products": "n = LayerNormalization (x, g, b)  p = MatMul (n, w)  q = MatMul (n, v)  y = Add (p, q)",
    "the same weights twice": "n = LayerNormalization (x, g, b)  p = MatMul (n, w)  q = MatMul (n, w)  y = Add (p, q)",
    "Gemm": "n = LayerNormalization (x, g, b)  r = Reshape (n, rows)  y = Gemm (r, w, c)",
    "Gemm, weights turned": "n = LayerNormalization (x, g, b)  r = Reshape (n, rows)  y = Gemm <transB = 1> (r, t, c)",
    "windows": "n = LayerNormalization (x, g, b)  r = Reshape (n, windows)  p = Transpose <perm = [1, 0, 2]> (r)"
    "  y = MatMul (p, w)",
    "its mean is read, too": "n, mean = LayerNormalization (x, g, b)  p = MatMul (n, w)  y = Add (p, mean)",
    "one of two norms": "n = LayerNormalization (x, g, b)  p = MatMul (n, w)  o = LayerNormalization (x, g, b)"
    "  q = MatMul (o, v)  z = ReduceMax <axes = [2]> (o)  r = Add (p, q)  y = Add (r, z)",
}
LEFT = {
    "read by a sum": "n = LayerNormalization (x, g, b)  p = MatMul (n, w)  q = MatMul (p, t)  y = Add (n, q)",
    "scales that 8 bits hold": "n = LayerNormalization (x, whole, b)  y = MatMul (n, w)",
    "scales of zero": "n = LayerNormalization (x, zeros, b)  y = MatMul (n, w)",
    "other rows": "n = LayerNormalization (x, g, b)  r = Reshape (n, halves)  y = MatMul (r, u)",
    "on the right": "n = LayerNormalization (x, g, b)  y = MatMul (s, n)",
    "halves in another order": "n = LayerNormalization (x, g, b)  r = Reshape (n, pairs)"
    "  p = Transpose <perm = [1, 0, 2]> (r)  q = Reshape (p, rows)  z = MatMul (q, w)  y = Unsqueeze (z, first)",
    "others read the weights": "n = LayerNormalization (x, g, b)  p = MatMul (n, w)  q = MatMul (x, w)  y = Add (p, q)",
    "weights of three dims": "n = LayerNormalization (x, g, b)  y = MatMul (n, m)",
    "weights of one dim": "n = LayerNormalization (x, g, b)  z = MatMul (n, d)  y = Unsqueeze (z, last)",
    "added by a Gemm": "n = LayerNormalization (x, g, b)  r = Reshape (n, rows)  a = Reshape (x, rows)"
    "  z = Gemm (a, square, r)  y = Unsqueeze (z, first)",
    "multiplied and added by a Gemm": "n = LayerNormalization (x, g, b)  r = Reshape (n, rows)"
    "  z = Gemm (r, square, r)  y = Unsqueeze (z, first)",
    "columns of a Gemm": "n = LayerNormalization (x, g, b)  r = Reshape (n, rows)"
    "  z = Gemm <transA = 1> (r, s)  y = Unsqueeze (z, first)",
    "two axes": "n = LayerNormalization <axis = 1> (x, g, b)  y = MatMul (n, w)",
    "biases that are computed": "k = Abs (b)  n = LayerNormalization (x, g, k)  y = MatMul (n, w)",
    "scales without end": "n = LayerNormalization (x, endless, b)  y = MatMul (n, w)",
    "biases without end": "n = LayerNormalization (x, g, huge)  y = MatMul (n, w)",
    "biases that are no numbers": "n = LayerNormalization (x, g, unknown)  y = MatMul (n, w)",
    "weights that are computed": "k = Abs (w)  n = LayerNormalization (x, g, b)  y = MatMul (n, k)",
    "scales that are computed": "k = Abs (g)  n = LayerNormalization (x, k, b)  y = MatMul (n, w)",
    "nobody": "n = LayerNormalization (x, g, b)  y = Abs (x)",
}


@pytest.mark.parametrize("case", MOVED)
def test_scales_are_whole_steps_and_the_model_is_the_same(case: str, tmp_path: Path) -> None:
    dims = "p,q" if "Gemm" in case else "p,q,r"
    model = graph(f"net (float[1,6,32] x) => (float[{dims}] y) {{ {MOVED[case]} }}", CONSTANTS)
    before = outputs(model, {"x": X})["y"]

    assert round_norm_scales.apply(model, tmp_path) == 1
    np.testing.assert_allclose(outputs(model, {"x": X})["y"], before, rtol=1e-4, atol=1e-5)
    norm = next(node for node in model.graph.node if node.op_type == "LayerNormalization")
    assert norm.output[0] == "n_rounded"
    given = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    scale, bias = given[norm.input[1]], given[norm.input[2]] if len(norm.input) > 2 else np.zeros(1)
    assert np.abs(bias).max() <= 2 * np.abs(CONSTANTS["b"]).max()
    steps = scale.astype(np.float64) / ((max(scale.max(), 0) - min(scale.min(), 0)) / 255)
    kept = np.arange(32) != 5 if "nearly" in case else slice(None)
    np.testing.assert_allclose(steps[kept], np.rint(steps[kept]), atol=1e-4)
    assert round_norm_scales.apply(model, tmp_path) == 0


@pytest.mark.parametrize("case", LEFT)
def test_left_alone(case: str, tmp_path: Path) -> None:
    model = graph(f"net (float[1,6,32] x) => (float[p,q,r] y) {{ {LEFT[case]} }}", CONSTANTS)
    before = model.SerializeToString()
    assert round_norm_scales.apply(model, tmp_path) == 0
    assert model.SerializeToString() == before


def test_transposed_rows_are_no_columns(tmp_path: Path) -> None:
    text = "n = LayerNormalization (x, g, b)  r = Transpose <perm = [0, 2, 1]> (n)  y = MatMul (r, w)"
    model = graph(f"net (float[1,32,32] x) => (float[1,32,6] y) {{ {text} }}", CONSTANTS)
    assert round_norm_scales.apply(model, tmp_path) == 0


def test_other_types_than_float32_stay(tmp_path: Path) -> None:
    doubles = {name: CONSTANTS[name].astype(np.float64) for name in ("g", "b", "w")}
    model = graph(f"net (double[1,6,32] x) => (double[1,6,6] y) {{ {MOVED['MatMul']} }}", doubles)
    assert round_norm_scales.apply(model, tmp_path) == 0


def test_weights_of_two_products_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_norm_scales, "_MOST_BYTES", 4 * 32 * 6)
    text = MOVED["the same weights twice"]
    model = graph(f"net (float[1,6,32] x) => (float[1,6,6] y) {{ {text} }}", CONSTANTS)
    assert round_norm_scales.apply(model, tmp_path) == 1


def test_an_output_stays(tmp_path: Path) -> None:
    model = graph(
        f"net (float[1,6,32] x) => (float[1,6,32] n, float[1,6,6] y) {{ {MOVED['MatMul']} }}",
        CONSTANTS,
    )
    assert round_norm_scales.apply(model, tmp_path) == 0


def test_a_large_model_keeps_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "n = LayerNormalization (x, g, b)  p = MatMul (n, t2)  o = LayerNormalization (p, g, b)  y = MatMul (o, w)"
    given = CONSTANTS | {"t2": RANDOM.normal(size=(32, 32)).astype(np.float32)}
    model = graph(f"net (float[1,6,32] x) => (float[1,6,6] y) {{ {text} }}", given)
    monkeypatch.setattr(round_norm_scales, "_MOST_BYTES", 4 * 32 * 32)
    before = outputs(model, {"x": X})["y"]
    assert round_norm_scales.apply(model, tmp_path) == 1
    np.testing.assert_allclose(outputs(model, {"x": X})["y"], before, rtol=1e-4, atol=1e-5)


def test_it_is_one_of_all(tmp_path: Path) -> None:
    model = graph(f"net (float[1,6,32] x) => (float[1,6,6] y) {{ {MOVED['MatMul']} }}", CONSTANTS)
    assert apply_all(model, tmp_path)["round_norm_scales"] == 1


@pytest.mark.slow
def test_sixteen_bits_lose_less(tmp_path: Path) -> None:
    """On the CPU and on the chip, against the original."""
    given = CONSTANTS | {"w": RANDOM.normal(size=(32, 64)).astype(np.float32)}
    text = "net (float[1,64,32] x) => (float[1,64,64] y) { n = LayerNormalization (x, g, b)  y = MatMul (n, w) }"
    model, feeds = graph(text, given), [{"x": RANDOM.normal(size=(1, 64, 32)).astype(np.float32)} for _ in range(4)]
    truth = [outputs(model, feed) for feed in feeds]
    found = []
    for number, made in enumerate((without_rewrites, with_rewrites)):
        component = made(tmp_path / str(number), graph(text, given))
        quantized = component.quantize("all", component.calibrate(feeds), weights="int16")
        ran = on_chip(quantized, feeds, tmp_path / f"chip{number}")
        found += [sqnr_db(truth, on_cpu(quantized, feeds), "y"), sqnr_db(truth, ran.outputs, "y")]
    assert found[2] > found[0] + 10
    assert found[3] > found[1] + 10
