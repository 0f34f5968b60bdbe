from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.products import fold_gemm_factors
from tests.conformance.batches import run_batch
from tests.support.graphs import graph, operators, outputs

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(3, 16)).astype(np.float32)
TURNED = X.T.copy()
W = RANDOM.normal(size=(16, 8)).astype(np.float32)
C = RANDOM.normal(size=8).astype(np.float32)
CONSTANTS = {"w": W, "wt": W.T.copy(), "c": C, "row": np.full((3, 1), 0.7, np.float32)}
PLAIN = "float[3,16] x"
# Inputs, the Gemm, the Muls that are left
FOLDED = {
    "alpha": (PLAIN, "Gemm <alpha = 0.5> (x, w)", 0),
    "alpha, and weights turned": (PLAIN, "Gemm <alpha = 0.5, transB = 1> (x, wt)", 0),
    "both": (PLAIN, "Gemm <alpha = 0.5, beta = 2.0> (x, w, c)", 0),
    "both, and a turned input": ("float[16,3] xt", "Gemm <alpha = 0.5, beta = -2.0, transA = 1> (xt, w, c)", 0),
    "a bias for each row": (PLAIN, "Gemm <beta = 3.0> (x, w, row)", 0),
    "no bias": (PLAIN, "Gemm <beta = 0.0> (x, w, c)", 0),
    "a factor of nothing": (PLAIN, "Gemm <beta = 3.0> (x, w)", 0),
    "weights are the left side": ("float[16,8] v", "Gemm <alpha = 0.5> (x1, v)", 0),
    "two values": ("float[3,16] x, float[16,8] v", "Gemm <alpha = 0.5, beta = 2.0> (x, v, c)", 1),
    "a computed bias": ("float[3,16] x, float[8] d", "Gemm <alpha = 0.5, beta = 2.0> (x, w, d)", 1),
}
GIVEN = {"x": X, "xt": TURNED, "v": W * 2, "d": C * 3}


def given(inputs: str) -> dict[str, NDArray[np.float32]]:
    return {name: GIVEN[name] for name in (each.split()[-1] for each in inputs.split(", "))}


@pytest.mark.parametrize("case", FOLDED)
def test_a_gemm_has_no_factors_left(case: str, tmp_path: Path) -> None:
    inputs, gemm, products = FOLDED[case]
    model = graph(f"g ({inputs}) => (float[3,8] y) {{ y = {gemm} }}", CONSTANTS | {"x1": X})
    before = outputs(model, given(inputs))["y"]

    assert apply_all(model, tmp_path)["fold_gemm_factors"] == 1

    assert not [each for node in model.graph.node for each in node.attribute if each.name in ("alpha", "beta")]
    assert operators(model)["Mul"] == products
    np.testing.assert_allclose(outputs(model, given(inputs))["y"], before, rtol=1e-5, atol=1e-5)
    assert fold_gemm_factors.apply(model, tmp_path) == 0


def test_weights_that_others_read_are_stored_once(tmp_path: Path) -> None:
    text = "g (float[3,16] x) => (float[3,8] y) { a = Gemm <alpha = 0.5> (x, w) b = Gemm (x, w) y = Add (a, b) }"
    model = graph(text, {"w": W})
    before = outputs(model, {"x": X})["y"]

    assert fold_gemm_factors.apply(model, tmp_path) == 1

    assert [tensor.name for tensor in model.graph.initializer if len(tensor.dims) == 2] == ["w"]
    np.testing.assert_allclose(outputs(model, {"x": X})["y"], before, rtol=1e-5)


@pytest.mark.parametrize("gemm", ["Gemm (x, w, c)", "Gemm <alpha = 1.0, beta = 1.0, transB = 1> (x, wt)"])
def test_no_factors_are_left_alone(gemm: str, tmp_path: Path) -> None:
    model = graph(f"g (float[3,16] x) => (float[3,8] y) {{ y = {gemm} }}", CONSTANTS)
    assert fold_gemm_factors.apply(model, tmp_path) == 0


def test_the_chip_takes_no_factors(tmp_path: Path) -> None:
    models = []
    for inputs, gemm, _ in FOLDED.values():
        text = f"g ({inputs}) => (float[3,8] y) {{ y = {gemm} }}"
        models += [graph(text, CONSTANTS | {"x1": X}), graph(text, CONSTANTS | {"x1": X})]
        apply_all(models[-1], tmp_path)
    feeds = [given(inputs) for inputs, _, _ in FOLDED.values() for _ in range(2)]
    found = dict(zip(FOLDED, zip(*[iter(run_batch(models, feeds, tmp_path / "work"))] * 2, strict=True), strict=True))
    assert found["alpha"][0].on_cpu == ("Gemm",), "QNN takes an alpha now: drop fold_gemm_factors"
    for number, (case, (_, cured)) in enumerate(found.items()):
        expected = outputs(models[2 * number], feeds[2 * number])["y"]
        assert not cured.on_cpu, case
        np.testing.assert_allclose(cured.outputs[0], expected, atol=0.02, err_msg=case)
