from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.graph.rewrites import apply_all, scale_weights
from tests.support.graphs import graph, outputs
from tests.support.on_htp import on_chip, with_rewrites, without_rewrites

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(1, 4, 5)).astype(np.float32)
WHOLE = RANDOM.integers(-127, 128, (5, 6)).astype(np.float32)
PLANES = RANDOM.normal(size=(3, 4, 3)).astype(np.float32)
ONE = np.array(0.003, np.float32)
EACH = RANDOM.uniform(0.001, 0.02, 6).astype(np.float32)
CHANNELS = RANDOM.uniform(0.5, 2, (1, 3, 1)).astype(np.float32)
CONSTANTS = {
    "w": WHOLE,
    "v": WHOLE.T.copy(),
    "k": PLANES,
    "k2": PLANES * 2,
    "b": CHANNELS.ravel(),
    "one": ONE,
    "each": EACH,
}
CONSTANTS |= {"channels": CHANNELS, "zero": np.array(0, np.float32), "row": np.full((4, 1), 2, np.float32)}
CONSTANTS |= {"k2": PLANES * 2, "tiny": np.array(1e-9, np.float32), "huge": np.array(1e38, np.float32)}
CONSTANTS |= {"wide": np.full((1, 1, 1, 1), 2, np.float32), "shape": np.array([4, 5]), "first": np.array([0])}
FOLDED = {
    "one number": "m = MatMul (x, w)  y = Mul (m, one)",
    "the factor first": "m = MatMul (x, w)  y = Mul (one, m)",
    "one for each output": "m = MatMul (x, w)  y = Mul (m, each)",
    "a division": "m = MatMul (x, w)  y = Div (m, each)",
    "Gemm": "r = Reshape (x, shape)  m = Gemm (r, w)  s = Mul (m, each)  y = Unsqueeze (s, first)",
    "Gemm with weights turned": (
        "r = Reshape (x, shape)  m = Gemm <transB = 1> (r, v)  s = Mul (m, each)  y = Unsqueeze (s, first)"
    ),
    "Conv": "m = Conv (x, k)  y = Mul (m, one)",
    "Conv with a bias": "m = Conv (x, k, b)  y = Mul (m, channels)",
}
LEFT = {
    "others read the product": "m = MatMul (x, w)  s = Mul (m, one)  y = Add (m, s)",
    "others read the weights": "m = MatMul (x, w)  s = Mul (m, one)  t = MatMul (x, w)  y = Add (t, s)",
    "by rows": "m = MatMul (x, w)  y = Mul (m, row)",
    "zero": "m = MatMul (x, w)  y = Mul (m, zero)",
    "weights that would vanish": "m = MatMul (x, w)  y = Mul (m, tiny)",
    "weights that would overflow": "m = MatMul (x, w)  y = Mul (m, huge)",
    "a Gemm with a bias": ("r = Reshape (x, shape)  m = Gemm (r, w, each)  s = Mul (m, one)  y = Unsqueeze (s, first)"),
    "others read the bias": "n = Conv (x, k, b)  t = Abs (b)  m = Conv (x, k2, b)  s = Mul (m, one)  y = Add (n, s)",
    "a dim more": "m = MatMul (x, w)  s = Mul (m, wide)  y = Squeeze (s, first)",
    "a number divided": "m = MatMul (x, w)  y = Div (one, m)",
    "two values": "u = Abs (w)  m = MatMul (x, u)  y = Mul (m, one)",
}


@pytest.mark.parametrize("case", FOLDED)
def test_the_factor_is_in_the_weights(case: str, tmp_path: Path) -> None:
    model = graph(f"g (float[1,4,5] x) => (float[n,c,o] y) {{ {FOLDED[case]} }}", CONSTANTS)
    before = outputs(model, {"x": X})["y"]
    assert scale_weights.apply(model, tmp_path) == 1
    assert not [node for node in model.graph.node if node.op_type in ("Mul", "Div")]
    np.testing.assert_allclose(outputs(model, {"x": X})["y"], before, rtol=1e-5, atol=1e-5)
    assert scale_weights.apply(model, tmp_path) == 0


@pytest.mark.parametrize("case", LEFT)
def test_left_alone(case: str, tmp_path: Path) -> None:
    model = graph(f"g (float[1,4,5] x) => (float[n,c,o] y) {{ {LEFT[case]} }}", CONSTANTS)
    assert scale_weights.apply(model, tmp_path) == 0


def test_a_product_that_is_an_output_stays(tmp_path: Path) -> None:
    model = graph(
        "g (float[1,4,5] x) => (float[n,c,o] m, float[n,c,o] y) { m = MatMul (x, w)  y = Mul (m, one) }", CONSTANTS
    )
    assert scale_weights.apply(model, tmp_path) == 0


def test_two_factors_in_a_row_are_folded_together(tmp_path: Path) -> None:
    model = graph(
        "g (float[1,4,5] x) => (float[n,c,o] y) { m = MatMul (x, w)  s = Mul (m, one)  y = Mul (s, each) }", CONSTANTS
    )
    before = outputs(model, {"x": X})["y"]
    done = apply_all(model, tmp_path)
    assert (done["merge_scales"], done["scale_weights"]) == (1, 1)
    np.testing.assert_allclose(outputs(model, {"x": X})["y"], before, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("rewritten", [False, True])
def test_whole_numbers_times_inputs_are_more_than_float16_holds(rewritten: bool, tmp_path: Path) -> None:
    """As a file of onnxruntime's dynamic quantization has it."""
    whole = {"w": np.full((2048, 4), 127, np.float32), "one": np.array(2**-12, np.float32)}
    model = graph("g (float[1,2048] x) => (float[1,4] y) { m = MatMul (x, w)  y = Mul (m, one) }", whole)
    given = {"x": np.full((1, 2048), 0.5, np.float32)}
    component = (with_rewrites if rewritten else without_rewrites)(tmp_path / "model", model)
    ran = on_chip(component.rewrite["all"], [given], tmp_path / "chip")
    right = np.allclose(ran.outputs[0]["y"], outputs(model, given)["y"], rtol=0.01)
    assert right == rewritten
